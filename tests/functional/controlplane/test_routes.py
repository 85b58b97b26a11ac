"""Every route of Django, by who may open it: read from its URL table, so that a new one has to be classed here.

The management API's routes have their classes in `tests/functional/tenants/test_matrix.py`, the console's lists and
pages in `test_roles.py`, the inference API and its WebSocket in `tests/functional/gateway/test_matrix.py`.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from redis import Redis

from billing.models import Invoice
from controlplane.navigation import APPS_WITH_LISTS, PARENTS
from tests.functional.controlplane.test_roles import GRANTS, LOOK_AND_ADD, PAGES, browser
from tests.functional.tenants.conftest import Customer, acme, plan
from tests.functional.tenants.test_matrix import PLACES, PREFIX, make_document

__all__ = ["acme", "plan"]

SOMETHING = "0198a000-0000-7000-8000-0000000000ff"  # the id of nothing
OPEN = {
    "home",
    "console",
    "favicon",
    "schema",
    "api_docs",
    "inference_docs",
    "account_login",
    "login",
    "account_logout",
    "logout",
}
# Whoever is signed in: the home page, the search in what one may see, one's own password and second factor.
EVERYBODYS = {
    "index",
    "app_list",
    "search",
    "jsi18n",
    "password_change",
    "password_change_done",
    "account_reauthenticate",
    "mfa_index",
    "mfa_authenticate",
    "mfa_reauthenticate",
    "mfa_activate_totp",
    "mfa_deactivate_totp",
    "mfa_view_recovery_codes",
    "mfa_generate_recovery_codes",
    "mfa_download_recovery_codes",
    "mfa_list_webauthn",
    "mfa_add_webauthn",
    "mfa_reauthenticate_webauthn",
    "mfa_remove_webauthn",
    "mfa_edit_webauthn",
}
ASKED_OF_A_ROW = {"autocomplete", "view_on_site"}  # Django asks the model's own permission
OF_ONE = set(PARENTS)  # pages of one thing: who may open the page that they are opened from
# What is done to a row -> the roles that may. `*_pdf` and `*_csv` send others back to the list.
ACTIONS: dict[str, set[str]] = {
    "tenants_apikey_limits_now": {"operator", "support"},
    "tenants_tenant_limits_now": {"operator", "support", "finance"},
    "safety_policy_publish_one": {"operator"},
    "safety_policy_try_one": {"operator", "support"},
    **{f"billing_billingperiod_{name}": {"operator"} for name in ("compare", "seal", "issue", "waive", "correct")},
    **{f"billing_invoice_{name}": {"operator"} for name in ("pay", "void", "store")},
    "billing_adjustment_approve": {"operator"},
    "billing_priceversion_supersede": {"operator"},
    **{
        f"billing_{model}_{name}": {"operator"}
        for model in ("priceversion", "contractterms", "taxrate")
        for name in ("approve", "withdraw")
    },
}
FILES = {"billing_invoice_pdf", "billing_invoice_csv"}
OF_A_ROW = ("change", "delete", "history")
FORMS = ("changelist", "add", *OF_A_ROW)  # what Django makes of each model of the console
LISTS = {f"{label.replace('.', '_')}_{form}" for label in LOOK_AND_ADD for form in FORMS}
PASSWORD = {"auth_user_password_change"}  # a superuser's
# Routes without a name: each app's home, a row's old address, and all that is not there.
NAMELESS = re.compile(rf"admin/({'|'.join(APPS_WITH_LISTS)})/|admin/\w+/\w+/<path:object_id>/|admin/\(\?P<url>\.\*\)\$")
MANAGEMENT = {PREFIX + place.path for place in PLACES}
BY_NAME = {
    "open": OPEN,
    "everybody's": EVERYBODYS,
    "asked of a row": ASKED_OF_A_ROW,
    "page": set(PAGES),
    "page of one": OF_ONE,
    "action": set(ACTIONS),
    "file": FILES,
    "list": LISTS,
    "password": PASSWORD,
}


def routes() -> Iterator[tuple[str, str]]:
    """Each pattern as it stands in the table, with its name."""

    def walk(patterns: list[URLPattern | URLResolver], before: str) -> Iterator[tuple[str, str]]:
        for pattern in patterns:
            path = before + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, path)
            else:
                yield path, pattern.name or ""

    return walk(get_resolver("controlplane.urls").url_patterns, "")


def classes_of(path: str, name: str) -> list[str]:
    if path in MANAGEMENT:
        return ["management"]
    if not name:
        return ["nameless"] if NAMELESS.fullmatch(path) else []
    return [kind for kind, names in BY_NAME.items() if name in names]


def of_class(*kinds: str) -> list[tuple[str, str]]:
    """Addresses that can be asked for, of nothing that is there; with their names."""
    return [(address(path), name) for path, name in routes() if classes_of(path, name)[0] in kinds]


def address(path: str) -> str:
    path = re.sub(r"<int:\w+>", "1", path)
    path = re.sub(r"<(uuid|path):\w+>|<id>|<str:\w+>", SOMETHING, path)
    return "/" + re.sub(r"\^\(\?P<app_label>.*\)/\$", "tenants/", path).replace("(?P<url>.*)$", "no-such-page")


def statuses(client: Client, path: str) -> set[int]:
    """What GET and POST are answered with."""
    return {client.get(path).status_code, client.post(path).status_code}


class TestTable:
    """A route that is in no class is tried by nobody: it fails here."""

    def test_has_every_route_in_one_class(self) -> None:
        assert [(path, name) for path, name in routes() if len(classes_of(path, name)) != 1] == []

    def test_names_no_route_that_is_gone(self) -> None:
        there = {name for _, name in routes()}
        assert {kind: names - there for kind, names in BY_NAME.items() if names - there} == {}

    def test_stands_behind_the_two_applications_and_the_one_websocket(self) -> None:
        shown = "[[str(r.pattern) for r in each] for each in (asgi.http_routes, asgi.websocket_routes)]"
        program = f"from controlplane import asgi; print({shown})"
        told = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
        assert told.stdout.strip() == str([["^(v1(/|$)|health(/|$))", ""], ["^v1/realtime/?$", ""]])


class TestStrangers:
    def test_are_sent_to_the_login_by_every_route_of_the_console(self, db: None, wired: Redis) -> None:
        client, wrong = Client(), {}
        kinds = [kind for kind in BY_NAME if kind != "open"]
        for path, _ in of_class("nameless", *kinds):
            for answer in (client.get(path), client.post(path)):
                if not answer.headers.get("location", "").startswith("/admin/login/"):
                    wrong[path] = answer.status_code
        assert wrong == {}

    def test_may_read_what_is_open(self, db: None, wired: Redis) -> None:
        found = {name: Client().get(path).status_code for path, name in of_class("open")}
        seen = dict.fromkeys(("favicon", "schema", "api_docs", "inference_docs", "account_login", "login"), 200)
        assert found == seen | dict.fromkeys(("home", "console", "account_logout", "logout"), 302)


@pytest.mark.parametrize("role", [*GRANTS, "nobody"])
class TestRoles:
    def test_opens_pages_of_one_thing_where_it_opens_the_page_of_all(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        found = {name: client.get(path).status_code != 403 for path, name in of_class("page of one")}
        assert found == {name: role in PAGES[PARENTS[name]] for name in OF_ONE}

    def test_does_to_a_row_exactly_what_it_may(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        found = {name: statuses(client, path) for path, name in of_class("action")}
        assert {name for name, seen in found.items() if seen != {403}} == {
            name for name, roles in ACTIONS.items() if role in roles
        }
        assert set(itertools.chain(*found.values())) <= {302, 403}  # back to the list: no such row

    def test_finds_no_form_of_a_model_that_it_may_not_look_at(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        closed = {label.replace(".", "_") for label, (looks, _) in LOOK_AND_ADD.items() if role not in looks}
        wanted = {f"{model}_{form}" for model in closed for form in OF_A_ROW}  # test_roles tries the other two
        forms = [(path, name) for path, name in of_class("list") if name in wanted]
        assert len(forms) == len(wanted)
        found = {(path, name): statuses(client, path) for path, name in forms}
        of_nothing = {302}  # Django looks for the row first, and sends everybody home
        assert [
            (path, seen)
            for (path, name), seen in found.items()
            if seen != (of_nothing if name.endswith("_history") else {403})
        ] == []

    def test_changes_nobodys_password_but_its_own(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        ada = User.objects.create_user("ada", password="a long pass phrase")
        path = reverse("admin:auth_user_password_change", args=[ada.pk])
        form = {"password1": "another pass phrase", "password2": "another pass phrase", "usable_password": "true"}
        assert (client.get(path).status_code, client.post(path, form).status_code) == (403, 403)
        ada.refresh_from_db()
        assert ada.check_password("a long pass phrase")

    def test_takes_the_files_of_a_document_that_it_may_look_at(self, acme: Customer, role: str) -> None:
        make_document(acme.tenant)
        client, document = browser(role), Invoice.objects.get()
        found = {name: client.get(reverse(f"admin:{name}", args=[document.pk])) for name in FILES}
        looks, _ = LOOK_AND_ADD["billing.invoice"]
        assert {answer.status_code for answer in found.values()} == ({200} if role in looks else {302})
        if role in looks:
            assert found["billing_invoice_pdf"].content.startswith(b"%PDF")
        assert all(
            document.number not in answer.content.decode("latin-1") or role in looks for answer in found.values()
        )

    def test_is_offered_only_the_tenants_that_it_may_look_at(self, acme: Customer, role: str) -> None:
        asked = {"term": "acme", "app_label": "tenants", "model_name": "project", "field_name": "tenant"}
        answer = browser(role).get(reverse("admin:autocomplete"), asked)
        looks, _ = LOOK_AND_ADD["tenants.tenant"]
        assert (answer.status_code, str(acme.tenant.pk) in answer.content.decode()) == (
            (200, True) if role in looks else (403, False)
        )
