"""Keys over their life: rotation, networks, expiry, peppers, last use."""

import uuid
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks, Settings
from redis import Redis

from contracts.tenancy import Scope
from tenants import selectors, services
from tenants.auth.keys import digest
from tenants.limits import keys as redis_keys
from tenants.models import ApiKey, OutboxEvent
from tenants.services.keys import FORMER_TEXTS_MAX, canonical_network, digests_of, pepper_id_of
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]


def opens(text: str) -> bool:
    return selectors.load_context(digests_of(text)) is not None


class TestRotation:
    def test_gives_another_text_and_lets_the_old_one_open_the_same_key_for_a_while(self, acme: Customer) -> None:
        status, made = manager(acme)("post", f"keys/{acme.key.id}/rotate", {"overlap_seconds": 3600})
        assert (status, made["id"], made["previous_last4"]) == (201, str(acme.key.id), acme.plaintext[-4:])
        old = selectors.load_context(digests_of(acme.plaintext))
        new = selectors.load_context(digests_of(made["key"]))
        assert old is not None
        assert new is not None
        assert old.api_key_id == new.api_key_id == str(acme.key.id)
        assert (new.key_epoch, new.expires_at_ms) == (acme.key.epoch + 1, None)
        ends = ApiKey.objects.get(id=acme.key.id).previous_expires_at
        assert ends is not None
        assert old.expires_at_ms == int(ends.timestamp() * 1000)
        assert timedelta(minutes=59) < ends - timezone.now() <= timedelta(hours=1)

    def test_ends_the_old_text_when_its_time_is_over(self, acme: Customer) -> None:
        _, plaintext = services.rotate_key(key=acme.key, overlap=timedelta(hours=1))
        ApiKey.objects.filter(id=acme.key.id).update(previous_expires_at=timezone.now())
        assert not opens(acme.plaintext)
        services.expire_keys()
        row = ApiKey.objects.get(id=acme.key.id)
        assert (row.previous_digest, row.previous_last4, row.previous_expires_at) == (None, "", None)
        assert opens(plaintext)

    def test_without_overlap_refuses_the_old_text_at_once(self, acme: Customer) -> None:
        _, plaintext = services.rotate_key(key=acme.key, overlap=timedelta(0))
        assert (opens(acme.plaintext), opens(plaintext)) == (False, True)

    def test_again_and_again_lets_every_text_live_to_the_end_of_its_own_overlap(self, acme: Customer) -> None:
        _, second = services.rotate_key(key=acme.key, overlap=timedelta(hours=2))
        first_ends = ApiKey.objects.get(id=acme.key.id).previous_expires_at
        assert first_ends is not None
        _, third = services.rotate_key(key=acme.key, overlap=timedelta(hours=1))
        _, fourth = services.rotate_key(key=acme.key, overlap=timedelta(hours=3))
        assert [opens(text) for text in (acme.plaintext, second, third, fourth)] == [True] * 4
        first = selectors.load_context(digests_of(acme.plaintext))
        assert first is not None
        assert first.expires_at_ms == int(first_ends.timestamp() * 1000)
        texts = ApiKey.objects.get(id=acme.key.id).earlier
        texts[digests_of(second)[0]] = int(timezone.now().timestamp() * 1000)
        ApiKey.objects.filter(id=acme.key.id).update(earlier=texts)
        assert [opens(text) for text in (acme.plaintext, second, third, fourth)] == [True, False, True, True]

    def test_without_overlap_refuses_every_text_from_before(self, acme: Customer) -> None:
        _, second = services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        _, third = services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        _, fourth = services.rotate_key(key=acme.key, overlap=timedelta(0))
        assert [opens(text) for text in (acme.plaintext, second, third, fourth)] == [False, False, False, True]

    def test_is_refused_while_as_many_texts_as_may_open_the_key(self, acme: Customer) -> None:
        for _ in range(FORMER_TEXTS_MAX):
            _, last = services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        status, refusal = manager(acme)("post", f"keys/{acme.key.id}/rotate", {"overlap_seconds": 3600})
        assert (status, refusal["error"]["param"]) == (409, "overlap_seconds")
        assert (opens(acme.plaintext), opens(last)) == (True, True)

    def test_never_lengthens_the_keys_own_life(self, acme: Customer) -> None:
        ends = timezone.now() + timedelta(minutes=5)
        services.change_key(key=acme.key, changes={"expires_at": ends})
        services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        assert ApiKey.objects.get(id=acme.key.id).previous_expires_at == ends

    def test_makes_caches_load_again_and_writes_its_event_without_the_text(
        self, acme: Customer, wired: Redis, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            _, plaintext = services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        assert wired.hget(redis_keys.epoch(str(acme.tenant.id)), str(acme.key.id)) == b"2"
        event = OutboxEvent.objects.get(name="key.rotated")
        assert event.body["before"] == {"last4": acme.plaintext[-4:]}
        assert event.body["after"]["last4"] == plaintext[-4:]
        assert plaintext not in str(event.body)

    def test_is_refused_for_a_key_that_ended_and_for_a_long_overlap(self, acme: Customer) -> None:
        api = manager(acme)
        for seconds in (-1, 30 * 86_400 + 1, "5", 1.5):
            status, answer = api("post", f"keys/{acme.key.id}/rotate", {"overlap_seconds": seconds})
            assert (status, answer["error"]["param"]) == (400, "overlap_seconds"), seconds
        services.revoke_key(key=acme.key)
        assert api("post", f"keys/{acme.key.id}/rotate", {})[0] == 409
        assert api.change(f"keys/{acme.key.id}", {"name": "x"})[0] == 409


class TestModels:
    def test_that_nobody_serves_are_refused_by_name(self, acme: Customer) -> None:
        body = {"project": str(acme.project.id), "name": "ci", "allowed_models": ["m", "gpt-7"]}
        status, answer = manager(acme)("post", "keys", body)
        assert (status, answer["error"]["param"]) == (400, "allowed_models")
        assert "`gpt-7`" in answer["error"]["message"]
        status, answer = manager(acme).change(f"keys/{acme.key.id}", {"allowed_models": ["gpt-7"]})
        assert (status, answer["error"]["param"]) == (400, "allowed_models")
        limits = [{"metric": "tokens_per_day", "cap": 1}]
        body = {"scope": "key", "id": str(acme.key.id), "model": "gpt-7", "limits": limits}
        assert manager(acme)("post", "limits", body)[1]["error"]["param"] == "model"

    def test_none_allowed_is_not_every_one(self, acme: Customer) -> None:
        changed = manager(acme).change(f"keys/{acme.key.id}", {"allowed_models": []})[1]
        assert changed["allowed_models"] == []
        context = selectors.load_context(digests_of(acme.plaintext))
        assert context is not None
        assert context.allowed_models == frozenset()


class TestNetworks:
    def test_are_kept_in_one_spelling_and_reach_the_hot_path(self, acme: Customer) -> None:
        given = ["10.0.0.0/8", "192.0.2.7", "2001:DB8:0::/32", "10.0.0.0/8"]
        _, changed = manager(acme).change(f"keys/{acme.key.id}", {"allowed_networks": given})
        assert changed["allowed_networks"] == ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]
        context = selectors.load_context(digests_of(acme.plaintext))
        assert context is not None
        assert context.allowed_networks == ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32")

    @pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "localhost", "::ffff:10.0.0.0/104", "010.0.0.1"])
    def test_of_another_form_are_refused(self, text: str) -> None:
        with pytest.raises(ValidationError, match="network"):
            canonical_network(text)

    def test_hold_for_a_management_key_too(self, acme: Customer) -> None:
        _, plaintext = services.create_key(
            project=acme.project, name="manage", scopes=["manage"], allowed_networks=["198.51.100.0/24"]
        )
        for address, status in (("198.51.100.9", 200), ("::ffff:198.51.100.9", 200), ("203.0.113.1", 403), ("", 403)):
            answer = Client().get(
                "/api/v1/projects", headers={"authorization": f"Bearer {plaintext}"}, REMOTE_ADDR=address
            )
            assert answer.status_code == status, address
        assert answer.json()["error"]["code"] == "network_not_allowed"


class TestExpiry:
    def test_ends_a_key_by_its_epoch_with_one_event(
        self, acme: Customer, wired: Redis, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
    ) -> None:
        ApiKey.objects.filter(id=acme.key.id).update(expires_at=timezone.now())
        with django_capture_on_commit_callbacks(execute=True):
            assert services.expire_keys() == 1
        assert services.expire_keys() == 0
        assert wired.hget(redis_keys.epoch(str(acme.tenant.id)), str(acme.key.id)) == b"-2"
        assert OutboxEvent.objects.filter(name="key.expired").count() == 1

    def test_is_final(self, acme: Customer) -> None:
        ApiKey.objects.filter(id=acme.key.id).update(expires_at=timezone.now())
        later = (timezone.now() + timedelta(days=1)).isoformat()
        assert manager(acme).change(f"keys/{acme.key.id}", {"expires_at": later})[0] == 409
        assert not opens(acme.plaintext)


class TestManyKeysAtOnce:
    def test_are_read_by_two_queries_each_with_its_own_facts_and_limits(
        self, acme: Customer, mallory: Customer, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        services.set_limits(api_key=acme.key, caps={"concurrent_requests": 3})
        unknown = ["0" * 64]
        with django_assert_num_queries(2):
            mine, nobody, theirs = selectors.load_contexts(
                [digests_of(acme.plaintext), unknown, digests_of(mallory.plaintext)]
            )
        assert nobody is None
        assert mine == selectors.load_context(digests_of(acme.plaintext))
        assert theirs == selectors.load_context(digests_of(mallory.plaintext))
        assert [limit.cap for limit in mine.limits if limit.scope is Scope.KEY] == [3]
        assert [limit.cap for limit in theirs.limits if limit.scope is Scope.KEY] == []


class TestPeppers:
    def test_that_are_former_open_a_key_and_move_it_to_the_new_one(self, acme: Customer, settings: Settings) -> None:
        _, between = services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        _, rotated = services.rotate_key(key=acme.key, overlap=timedelta(days=1))
        env = settings.ENV
        settings.ENV = env.model_copy(update={"secret": type(env.secret)("n" * 40), "secret_old": env.secret})
        new, old = digests_of(rotated)
        assert ApiKey.objects.get(id=acme.key.id).digest == old
        assert services.load_keys([[new, old]]) != [None]
        row = ApiKey.objects.get(id=acme.key.id)
        assert (row.digest, row.pepper_id) == (new, pepper_id_of(services.pepper()))
        before, first = digests_of(between), digests_of(acme.plaintext)
        assert None not in services.load_keys([before, first])
        assert ApiKey.objects.get(id=acme.key.id).previous_digest == before[0]
        assert list(ApiKey.objects.get(id=acme.key.id).earlier) == [first[0]]
        assert ApiKey.objects.get(id=acme.key.id).digest == new
        settings.ENV = env.model_copy(update={"secret": type(env.secret)("n" * 40)})
        assert opens(rotated)
        assert opens(acme.plaintext)

    def test_move_a_management_key_when_it_is_used_too(self, acme: Customer, settings: Settings) -> None:
        _, text = services.create_key(project=acme.project, name="manage", scopes=["manage"])
        env = settings.ENV
        secret = type(env.secret)
        settings.ENV = env.model_copy(update={"secret": secret("n" * 40), "secret_old": env.secret})
        status, _ = Api(text)("get", "keys")
        row = ApiKey.objects.get(name="manage")
        assert (status, row.pepper_id) == (200, pepper_id_of(services.pepper()))
        settings.ENV = env.model_copy(update={"secret": secret("n" * 40)})
        assert Api(text)("get", "keys")[0] == 200

    def test_that_are_gone_open_nothing(self, acme: Customer, settings: Settings) -> None:
        env = settings.ENV
        settings.ENV = env.model_copy(update={"secret": type(env.secret)("n" * 40)})
        assert not opens(acme.plaintext)
        assert digest(acme.plaintext, services.pepper()) == digests_of(acme.plaintext)[0]


class TestLastUse:
    def test_moves_forwards_only_for_many_keys_in_one_statement(
        self, acme: Customer, mallory: Customer, django_assert_num_queries: object
    ) -> None:
        now = timezone.now()
        before = {row.id: row.updated_at for row in ApiKey.objects.all()}
        uses = {acme.key.id: now, mallory.key.id: now, uuid.uuid4(): now}
        assert services.record_last_used(uses) == 2
        assert services.record_last_used({acme.key.id: now - timedelta(seconds=1)}) == 0
        assert services.record_last_used({}) == 0
        assert ApiKey.objects.get(id=acme.key.id).last_used_at == now
        assert {row.id: row.updated_at for row in ApiKey.objects.all()} == before

    def test_of_a_management_key_is_noted_once_a_minute(self, acme: Customer) -> None:
        api = manager(acme)
        seen = ApiKey.objects.filter(scopes=["manage"]).values_list("last_used_at", flat=True)
        assert seen.get() is None
        api("get", "tenants")
        first = seen.get()
        api("get", "tenants")
        assert first is not None
        assert seen.get() == first
        ApiKey.objects.update(last_used_at=first - timedelta(minutes=2))
        api("get", "tenants")
        assert seen.get() > first

    def test_of_a_key_that_opens_nothing_here_is_not_noted(self, acme: Customer) -> None:
        Api(acme.plaintext)("get", "tenants")
        assert ApiKey.objects.get(id=acme.key.id).last_used_at is None


class TestBudgets:
    def test_are_money_in_units_with_alerts(self, acme: Customer) -> None:
        api = member(acme, "owner")
        body = {"scope": "key", "id": str(acme.key.id), "period": "day", "amount": "0.000000001", "alerts": [90, 10]}
        status, rows = api("post", "budgets", body)
        assert status == 200
        assert [(row["period"], row["amount"], row["currency"], row["alerts"]) for row in rows] == [
            ("day", "0.000000001", "USD", [10, 90])
        ]
        context = selectors.load_context(digests_of(acme.plaintext))
        assert context is not None
        [limit] = [limit for limit in context.limits if limit.metric == "spend_per_day"]
        assert (limit.cap, limit.alerts, limit.model) == (1, (10, 90), None)
        api("post", "budgets", {**body, "amount": "5", "alerts": None, "model": "m"})
        _, page = api("get", "budgets?period=day&model=m")
        assert [(row["amount"], row["alerts"]) for row in page["data"]] == [("5", [50, 80, 100])]
        assert len(api("post", "budgets", {**body, "amount": None})[1]) == 1

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"amount": 5}, "amount"),
            ({"amount": "-1"}, "amount"),
            ({"amount": "1e3"}, "amount"),
            ({"amount": "0.0000000001"}, "amount"),
            ({"amount": "NaN"}, "amount"),
            ({"amount": "9999999999"}, "amount"),
            ({"amount": "\u0661"}, "amount"),
            ({"alerts": [0]}, "alerts.0"),
            ({"alerts": [50, 50]}, "alerts"),
            ({"alerts": [101]}, "alerts.0"),
            ({"period": "week"}, "period"),
        ],
    )
    def test_refuse_what_is_not_exact(self, acme: Customer, changes: dict[str, object], param: str) -> None:
        body = {"scope": "key", "id": str(acme.key.id), "period": "day", "amount": "1", **changes}
        status, answer = manager(acme)("post", "budgets", body)
        assert (status, answer["error"]["param"]) == (400, param)
