"""Every route of the management API with another tenant's ids: made from the URL table, so that later routes join."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Model, Q
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.generators import SchemaGenerator
from redis import Redis

from billing.closing.close import open_periods
from billing.models import Invoice
from controlplane.models import ServedModel
from safety import services as safety_services
from safety.defaults import demo_document
from safety.models import Policy
from tenants import events, services
from tenants.api.routes import Route
from tenants.models import ApiKey, AuditEntry, LimitSetting, Member, OutboxEvent, Plan, Project, Role, Tenant
from tenants.roles import may
from tenants.webhooks import services as webhook_services
from tenants.webhooks.models import Attempt, Delivery, Endpoint, Event
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db

PREFIX = "api/v1/"


@dataclass(frozen=True)
class Place:
    """One path of the URL table."""

    path: str  # `keys/<uuid:pk>/rotate`
    view: type[Route[Any]]
    actions: dict[str, str]

    @property
    def model(self) -> type[Model]:
        assert self.view.queryset is not None, f"{self.view.__name__} names its queryset, for this test and the schema"
        return self.view.queryset.model

    def of(self, row: Model) -> str:
        return self.path.replace("<uuid:pk>", str(row.pk))


def places() -> list[Place]:
    found = []

    def walk(patterns: list[URLPattern | URLResolver], before: str) -> None:
        for pattern in patterns:
            path = before + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                walk(pattern.url_patterns, path)
            elif path.startswith(PREFIX):
                callback: Any = pattern.callback
                actions = {method: name for method, name in callback.actions.items() if method != "head"}
                found.append(Place(path.removeprefix(PREFIX), callback.cls, actions))

    walk(get_resolver("controlplane.urls").url_patterns, "")
    return found


PLACES = places()
ONE = [place for place in PLACES if "<uuid:pk>" in place.path]
MANY = [place for place in PLACES if "<uuid:pk>" not in place.path and "list" in place.actions.values()]
APART = [place for place in PLACES if place not in ONE and place not in MANY]
OPERATORS = {"finance/usage", "finance/wasted", "finance/movers", "finance/receivables"}  # the platform's own books
NOBODYS = {"webhooks/events", "capacity"}  # a list that is the same for all, and a calculation


def rows_of(model: type[Model], tenant: Tenant) -> list[Model]:
    name = {Tenant: "id", Plan: "tenants"}.get(model, "tenant_id")
    mine = Q(**{name: tenant.id})
    if model is Policy:  # it knows nothing of its tenants
        mine = Q(id__in=Tenant.objects.filter(id=tenant.id).values("policy_id"))
    found = list(model._default_manager.filter(mine))
    assert found, f"give {tenant.name} a {model.__name__} in `estate`: a route shows it"
    return found


def furnish(who: Customer) -> None:
    """One of everything that a route shows."""
    user = User.objects.create_user(f"{who.tenant.name}-only", password="x")
    services.add_member(tenant=who.tenant, user=user, role="owner")
    services.set_limits(api_key=who.key, caps={"tokens_per_day": 5, "spend_per_day": 7})
    endpoint, _ = webhook_services.create_endpoint(tenant=who.tenant, url="https://hooks.example.com/in")
    delivery = webhook_services.send_test(endpoint=endpoint)
    Attempt.objects.create(
        tenant=who.tenant, delivery=delivery, replay=0, number=1, finished_at=delivery.created_at, latency_ms=3
    )
    for row in OutboxEvent.objects.filter(tenant_id=who.tenant.id):
        events.keep(events.message_of(row))
    make_document(who.tenant)
    rules = demo_document(policy_id="any", version=1)["rules"]
    policy = safety_services.create_policy(name=f"rules of {who.tenant.name}", rules=rules)
    safety_services.publish_policy(policy_id=str(policy.pk), published_by="ada")
    policy.refresh_from_db()
    services.change_tenant(tenant=who.tenant, changes={"policy": policy})


def make_document(tenant: Tenant) -> None:
    """An issued document of nothing: who sees it is asked here, not what it says."""
    period = open_periods(tenant_id=tenant.id, now=tenant.created_at)[0]
    party = dict.fromkeys(("street", "postal_code", "city", "tax_id", "email"), "x")
    serial = Invoice.objects.count() + 1
    Invoice.objects.create(
        tenant=tenant, period=period, sequence=1, kind="invoice", series="T", year=2026, serial=serial,
        number=f"T-2026-{serial}", usage_revision=1, usage_posted=0, currency=period.currency, net=0, tax=0, total=0,
        credit_used=0, tax_category="Z", tax_rate_ppm=0, seller={"legal_name": "Weir", "country": "NZ", **party},
        buyer={"legal_name": tenant.name, "country": "NP", **party}, issued_at=period.ends_at, issued_by="user:ada",
        due_at=period.ends_at,
    )  # fmt: skip


@pytest.fixture
def estate(acme: Customer, mallory: Customer, wired: Redis) -> tuple[Customer, Customer]:
    """Acme asks, Mallory owns; each has a plan of its own."""
    theirs = services.create_plan(name="theirs")
    services.set_limits(plan=theirs, caps={"requests_per_minute": 7})
    services.change_tenant(tenant=mallory.tenant, changes={"plan": theirs})
    for who in (acme, mallory):
        furnish(who)
    return acme, mallory


@pytest.fixture(params=["key", "owner"])
def asker(request: pytest.FixtureRequest, estate: tuple[Customer, Customer]) -> Api:
    """Acme's management key, and its owner's session."""
    return manager(estate[0]) if request.param == "key" else member(estate[0], "owner", "ada")


def texts(value: Any) -> str:
    return json.dumps(value)


class TestTable:
    def test_holds_every_room_of_the_api(self) -> None:
        assert {place.path.split("/")[0] for place in PLACES} >= {
            "tenants",
            "plans",
            "projects",
            "keys",
            "members",
            "limits",
            "budgets",
            "audit",
            "webhooks",
            "invoices",
            "policies",
        }
        shown = {place.model for place in PLACES}
        assert shown >= {Tenant, Project, ApiKey, Member, LimitSetting, AuditEntry, Endpoint}
        assert [place.path for place in PLACES if not issubclass(place.view, Route)] == []

    def test_has_every_route_in_a_class(self) -> None:
        """Rows and lists of rows are tried with another tenant's; what has none is named, or nobody tries it."""
        assert {place.path for place in APART} == OPERATORS | NOBODYS
        assert not OPERATORS & NOBODYS

    def test_every_action_names_what_it_needs(self) -> None:
        missing = [
            f"{place.path} {action}"
            for place in PLACES
            for action in place.actions.values()
            if action not in place.view.needs
        ]
        assert missing == []

    def test_every_list_names_its_filters(self) -> None:
        assert [place.path for place in MANY if place.view.filters is None] == []


class TestForeignId:
    @pytest.mark.parametrize("place", ONE, ids=lambda place: place.path)
    def test_t01_is_not_found(self, place: Place, asker: Api, estate: tuple[Customer, Customer]) -> None:
        acme, mallory = estate
        before = list(Delivery.objects.values()), list(Event.objects.values())
        for row in rows_of(place.model, mallory.tenant):
            as_it_is = place.model._default_manager.filter(pk=row.pk).values().get()
            for method in place.actions:
                status, answer = asker(method, place.of(row), {} if method != "get" else None, if_match="*")
                assert (status, answer["error"]["code"]) == (404, "not_found"), method
                assert answer["error"]["message"] == "Not found."
            assert place.model._default_manager.filter(pk=row.pk).values().get() == as_it_is
        assert (list(Delivery.objects.values()), list(Event.objects.values())) == before
        if "get" in place.actions:
            own = rows_of(place.model, acme.tenant)[0]
            assert asker("get", place.of(own))[0] == 200

    @pytest.mark.parametrize("place", ONE, ids=lambda place: place.path)
    def test_t01_is_not_found_either_where_the_query_forgot_its_filter(
        self, place: Place, asker: Api, estate: tuple[Customer, Customer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, mallory = estate
        monkeypatch.setattr(Route, "mine", lambda route: Q())
        monkeypatch.setattr(Route, "tenants", lambda route: Tenant.objects.all())
        for row in rows_of(place.model, mallory.tenant):
            for method in place.actions:
                status, _ = asker(method, place.of(row), {} if method != "get" else None, if_match="*")
                assert status == 404, method


class TestForeignIdInAList:
    @pytest.mark.parametrize("place", MANY, ids=lambda place: place.path)
    def test_t01_selects_nothing(self, place: Place, asker: Api, estate: tuple[Customer, Customer]) -> None:
        _, mallory = estate
        foreign = {str(row.pk) for row in rows_of(place.model, mallory.tenant)}
        status, page = asker("get", f"{place.path}?limit=200")
        assert status == 200
        assert page["data"]
        assert not foreign & {row["id"] for row in page["data"]}
        assert str(mallory.tenant.id) not in texts(page)
        for name, one in (place.view.filters or {}).items():
            if one.schema.get("format") == "uuid":
                for wanted in (mallory.tenant.id, mallory.project.id, mallory.key.id):
                    status, page = asker("get", f"{place.path}?{name}={wanted}")
                    assert (status, page["data"] if status == 200 else []) in ((200, []), (404, []))

    @pytest.mark.parametrize("place", MANY, ids=lambda place: place.path)
    def test_begins_no_page_of_anybody_else(self, place: Place, asker: Api, estate: tuple[Customer, Customer]) -> None:
        _, mallory = estate
        for row in rows_of(place.model, mallory.tenant):
            status, page = asker("get", f"{place.path}?after={row.pk}&limit=1")
            assert status == 200
            assert str(mallory.tenant.id) not in texts(page)


def bodies(schema: dict[str, Any], shapes: dict[str, Any], foreign: list[str]) -> Iterator[dict[str, Any]]:
    """Bodies of a request shape that name foreign ids wherever an id may stand, with every choice of the first enum."""
    properties = schema["properties"]
    ids = [name for name, one in properties.items() if one.get("format") == "uuid"]
    choices = {name: resolve(one, shapes)["enum"] for name, one in properties.items() if "enum" in resolve(one, shapes)}
    if not ids:
        return
    for wanted in foreign:
        for chosen in itertools.product(*choices.values()):
            body = {name: sample(resolve(one, shapes), shapes) for name, one in properties.items()}
            yield {**body, **dict(zip(choices, chosen, strict=True)), **dict.fromkeys(ids, wanted)}


def resolve(one: dict[str, Any], shapes: dict[str, Any]) -> dict[str, Any]:
    for alternative in [one, *one.get("allOf", []), *one.get("oneOf", [])]:
        if "$ref" in alternative:
            return resolve(shapes[alternative["$ref"].rsplit("/", 1)[1]], shapes)
    return one


def sample(one: dict[str, Any], shapes: dict[str, Any]) -> Any:
    kind = one.get("type")
    kind = next((k for k in kind if k != "null"), None) if isinstance(kind, list) else kind
    if "enum" in one or "examples" in one:
        return one.get("enum", one.get("examples"))[0]
    if one.get("format") == "date-time":
        return None
    if kind == "array":
        return [sample(resolve(one["items"], shapes), shapes)]
    if kind == "object":
        return {name: sample(resolve(part, shapes), shapes) for name, part in one["properties"].items()}
    return {"integer": one.get("minimum", 1), "boolean": True, "number": 1}.get(str(kind), "x")


class TestForeignIdInABody:
    @pytest.mark.parametrize(
        "place", [place for place in PLACES if place.actions.get("post") == "create"], ids=lambda place: place.path
    )
    def test_t01_makes_nothing(self, place: Place, asker: Api, estate: tuple[Customer, Customer]) -> None:
        _, mallory = estate
        schema = SchemaGenerator().get_schema(request=None, public=True)
        shapes = schema["components"]["schemas"]
        operation = schema["paths"][f"/{PREFIX}{place.path}"]["post"]
        body_schema = resolve(operation["requestBody"]["content"]["application/json"]["schema"], shapes)
        before = place.model._default_manager.count()
        foreign = [str(row.id) for row in (mallory.tenant, mallory.project, mallory.key)]
        made = list(bodies(body_schema, shapes, foreign))
        for body in made:
            status, answer = asker("post", place.path, body)
            assert status in (403, 404) or (status, answer["error"]["type"]) == (400, "invalid_request_error"), body
        if made:
            found = {asker("post", place.path, body)[0] for body in made}
            assert 404 in found or found == {403}, "no body came as far as the look-up"
        assert place.model._default_manager.count() == before


class TestOutsideOfTenants:
    """Routes that show no tenant's rows, and callers that are nobody's."""

    def test_t01_the_platforms_own_books_are_closed_to_every_tenant(
        self, asker: Api, estate: tuple[Customer, Customer]
    ) -> None:
        _, mallory = estate
        for place, query in itertools.product(APART, ("", f"?tenant={mallory.tenant.id}")):
            for method in place.actions:
                status, answer = asker(method, place.path + query, {} if method != "get" else None)
                assert (status == 403) is (place.path in OPERATORS), (place.path, method)
                assert str(mallory.tenant.id) not in texts(answer)

    def test_nothing_is_answered_without_a_key(self, wired: Redis) -> None:
        nobody = Api()
        for place in PLACES:
            path = place.path.replace("<uuid:pk>", "0198a000-0000-7000-8000-0000000000ff")
            for method in place.actions:
                status, answer = nobody(method, path, {} if method != "get" else None)
                assert (status, answer["error"]["type"]) == (401, "authentication_error"), (place.path, method)


class TestRoles:
    """Who may do what in a tenant: the table of `tenants.roles`, by each route."""

    @pytest.mark.parametrize("role", ["viewer", "billing", "developer", "admin", "owner"])
    def test_a_role_without_the_need_is_refused_and_changes_nothing(
        self, role: str, estate: tuple[Customer, Customer]
    ) -> None:
        acme, _ = estate
        api = member(acme, role, f"a-{role}")
        for place in PLACES:
            for method, action in place.actions.items():
                if place.model is ServedModel:  # a calculation, of nobody's rows
                    continue
                row = rows_of(place.model, acme.tenant)[0]
                allowed = may(Role(role), place.view.needs[action])
                if allowed and method != "get":
                    continue  # what a role may change is tested where it is changed
                status, _ = api(method, place.of(row), {} if method != "get" else None, if_match="*")
                assert status == (200 if allowed else 403), (place.path, method)
