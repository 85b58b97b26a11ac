"""Policies in PostgreSQL and Redis: drafts, versions, the trigger, and what a gateway then reads."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.urls import reverse
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from contracts.tenancy import PolicyRef
from safety import published, selectors, services
from safety.defaults import demo_document
from safety.document import Rule
from safety.models import Policy, PolicyVersion
from safety.policy import CompiledPolicy, PolicyError
from safety.published import PolicyMissing, PolicyStore

RULES: list[dict[str, Any]] = demo_document(policy_id="demo", version=1)["rules"]


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch, valkey_url: str, settings: Any) -> SyncRedis:
    """The Redis that `publishing` writes to is the tests' own."""
    client = SyncRedis.from_url(valkey_url, protocol=2)
    client.flushall()
    monkeypatch.setattr(settings.ENV, "redis_url", type(settings.ENV.redis_url)(valkey_url))
    yield client
    client.close()


@pytest.mark.django_db
class TestPublishPolicy:
    def test_makes_versions_that_count_up_and_writes_them_on_commit(
        self, pushed: SyncRedis, django_capture_on_commit_callbacks: Any
    ) -> None:
        policy = services.create_policy(name="demo", rules=RULES)
        with django_capture_on_commit_callbacks(execute=True):
            first = services.publish_policy(policy_id=str(policy.pk), published_by="ada")
            assert pushed.get(f"w:policy:{policy.pk}:1") is None
        assert first.version == 1
        assert json.loads(pushed.get(f"w:policy:{policy.pk}:1") or b"") == first.document
        announced = [fields for _, fields in pushed.xrange("w:policies")]
        assert announced == [{b"policy": str(policy.pk).encode(), b"version": b"1"}]
        assert selectors.find_published(policy_id=str(policy.pk)) == PolicyRef(policy_id=str(policy.pk), version=1)

        policy.refresh_from_db()
        policy.draft_rules = RULES[:1]
        policy.save()
        second = services.publish_policy(policy_id=str(policy.pk), published_by="ada")
        assert second.version == 2
        assert selectors.policy_document(str(policy.pk), 1)["rules"] == RULES
        assert selectors.policy_document(str(policy.pk), 2)["rules"] == RULES[:1]

    def test_makes_no_version_of_an_unchanged_draft(self, pushed: SyncRedis) -> None:
        policy = services.create_policy(name="demo", rules=RULES)
        once = services.publish_policy(policy_id=str(policy.pk), published_by="ada")
        assert services.publish_policy(policy_id=str(policy.pk), published_by="bob").pk == once.pk
        assert PolicyVersion.objects.count() == 1

    def test_refuses_a_draft_that_does_not_compile(self) -> None:
        policy = Policy.objects.create(name="broken", draft_rules=[{**RULES[0], "config": {"pattern": "("}}])
        with pytest.raises(PolicyError, match=r"rules\[0\].config.pattern"):
            services.publish_policy(policy_id=str(policy.pk), published_by="ada")
        assert selectors.find_published(policy_id=str(policy.pk)) is None

    @pytest.mark.parametrize("word", ["a\x00b", "\ud800"])
    def test_refuses_text_that_the_database_cannot_hold(self, word: str) -> None:
        rule = {**RULES[1], "config": {"words": [word]}}
        with pytest.raises(PolicyError, match="cannot be stored"):
            services.check_rules([rule])

    def test_never_changes_a_version_whoever_asks(self) -> None:
        policy = services.create_policy(name="demo", rules=RULES)
        services.publish_policy(policy_id=str(policy.pk), published_by="ada")
        with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
            PolicyVersion.objects.update(document={})
        with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
            PolicyVersion.objects.all()._raw_delete("default")

    def test_publishes_although_redis_is_away(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any, django_capture_on_commit_callbacks: Any
    ) -> None:
        monkeypatch.setattr(settings.ENV, "redis_url", type(settings.ENV.redis_url)("redis://127.0.0.1:1/0"))
        policy = services.create_policy(name="demo", rules=RULES)
        with django_capture_on_commit_callbacks(execute=True):
            published = services.publish_policy(policy_id=str(policy.pk), published_by="ada")
        assert published.version == 1

    @pytest.mark.parametrize(("policy_id", "version"), [("not-a-uuid", 1), ("018f3c7e-0000-7000-8000-000000000000", 1)])
    def test_says_that_a_version_is_missing(self, policy_id: str, version: int) -> None:
        with pytest.raises(PolicyMissing):
            selectors.policy_document(policy_id, version)
        assert selectors.find_published(policy_id=policy_id) is None


class Warmed(PolicyStore):
    """Says which versions it has warmed."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.warmed: asyncio.Queue[PolicyRef] = asyncio.Queue()

    async def _warm(self, ref: PolicyRef) -> None:
        await super()._warm(ref)
        self.warmed.put_nowait(ref)


class TestPolicyStore:
    async def test_gives_what_was_put_and_asks_redis_once(self, redis: Redis) -> None:
        store = PolicyStore(redis)
        await store.put(demo_document(policy_id="demo", version=4))
        policy = await store.get(PolicyRef(policy_id="demo", version=4))
        assert [rule.name for rule in policy.rules] == [rule["name"] for rule in RULES]
        await redis.flushall()
        assert await store.get(PolicyRef(policy_id="demo", version=4)) is policy

    async def test_says_what_is_missing(self, redis: Redis) -> None:
        with pytest.raises(PolicyMissing, match="policy demo version 9"):
            await PolicyStore(redis).get(PolicyRef(policy_id="demo", version=9))

    async def test_compiles_a_version_once_for_all_who_wait(
        self, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await PolicyStore(redis).put(demo_document(policy_id="demo", version=4))
        compiled: list[dict[str, Any]] = []
        original = CompiledPolicy.compile

        def compile_(document: dict[str, Any]) -> CompiledPolicy:
            compiled.append(document)
            return original(document)

        monkeypatch.setattr(CompiledPolicy, "compile", compile_)
        store = PolicyStore(redis)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(store.get(PolicyRef(policy_id="demo", version=4))) for _ in range(20)]
        assert len({id(task.result()) for task in asked}) == 1
        assert len(compiled) == 1

    async def test_is_warm_before_anybody_asks(self, redis: Redis) -> None:
        """What is there at the start, newest versions only, then what is published; what cannot be read is passed."""
        publisher, store = PolicyStore(redis), Warmed(redis)
        for version in (1, 2):
            await publisher.put(demo_document(policy_id="old", version=version))
        await publisher.put(demo_document(policy_id="lost", version=1))
        await redis.delete("w:policy:lost:1")
        await redis.xadd("w:policies", {"policy": "odd"})
        async with asyncio.TaskGroup() as group:
            service = group.create_task(store.keep_warm())
            assert [await store.warmed.get() for _ in range(2)] == [
                PolicyRef(policy_id="old", version=2),
                PolicyRef(policy_id="lost", version=1),
            ]
            await publisher.put(demo_document(policy_id="new", version=1))
            assert await store.warmed.get() == PolicyRef(policy_id="new", version=1)
            service.cancel()
        await redis.flushall()
        for policy_id, version in (("old", 2), ("new", 1)):
            assert (await store.get(PolicyRef(policy_id=policy_id, version=version))).policy_id == policy_id
        with pytest.raises(PolicyMissing):
            await store.get(PolicyRef(policy_id="old", version=1))

    async def test_remembers_a_bounded_number_of_announcements(
        self, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(published, "ANNOUNCED_MAX", 2)
        for version in (1, 2, 3):
            await PolicyStore(redis).put(demo_document(policy_id="demo", version=version))
        assert [fields[b"version"] for _, fields in await redis.xrange("w:policies")] == [b"2", b"3"]

    @pytest.mark.parametrize("raw", [b"{", b"[]", b'{"id": "other", "version": 1, "rules": []}', b"\xff"])
    async def test_refuses_what_is_not_this_policy(self, redis: Redis, raw: bytes) -> None:
        await redis.set("w:policy:demo:1", raw)
        with pytest.raises(PolicyError):
            await PolicyStore(redis).get(PolicyRef(policy_id="demo", version=1))


@pytest.mark.django_db
class TestPolicyAdmin:
    @pytest.fixture
    def admin(self, settings: Any, tmp_path: Path) -> Client:
        settings.STATIC_ROOT = tmp_path
        # The sidebar links every room's admin; it is the control plane's to test.
        settings.UNFOLD = {key: value for key, value in settings.UNFOLD.items() if key != "SIDEBAR"}
        client = Client()
        client.force_login(User.objects.create_superuser("ada", password="x" * 20))
        return client

    def test_shows_each_complaint_about_a_draft(self, admin: Client) -> None:
        rules = json.dumps([{**RULES[0], "config": {"pattern": "a*"}}])
        page = admin.post(reverse("admin:safety_policy_add"), self.form(draft_rules=rules))
        assert page.status_code == 200
        assert "rules[0].config.pattern: the pattern matches the empty text" in page.content.decode()
        assert not Policy.objects.exists()

    def test_names_the_rule_in_each_complaint(self, admin: Client) -> None:
        rules = [RULES[0], {**RULES[0], "name": "second", "fail": "never"}]
        page = html.unescape(
            admin.post(reverse("admin:safety_policy_add"), self.form(draft_rules=json.dumps(rules))).content.decode()
        )
        assert "Rule “second”, rules[1].fail: Input should be 'open' or 'closed'" in page

    def test_shows_rules_in_words_and_what_a_rule_may_say(self, admin: Client) -> None:
        rules = [
            {"name": "words", "kind": "ban_list", "stage": ["prompt", "output"], "action": "block", "fail": "open",
             "config": {"words": [f"w{number}" for number in range(10)]}},
            {"name": "numbers", "kind": "pii", "stage": ["output"], "action": "redact"},
        ]  # fmt: skip
        policy = services.create_policy(name="demo", rules=rules)
        page = admin.get(reverse("admin:safety_policy_change", args=[policy.pk])).content.decode()
        told = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))
        assert "words ban_list prompts, answers block the text passes (open) words: w0, w1" in told
        assert "w7 and 2 more" in told
        assert "numbers pii answers redact the text is held back (closed) as it comes" in told
        assert 'stage list of "prompt" or "output", required' in told
        assert "pattern (text, required)" in told
        for rule in get_args(get_args(Rule)[0]):
            assert f"<code>{get_args(rule.model_fields['kind'].annotation)[0]}</code>" in page
        assert page.index("&quot;name&quot;: &quot;words&quot;") < page.index("&quot;kind&quot;: &quot;ban_list&quot;")
        publish = admin.get(reverse("admin:safety_policy_publish_one", args=[policy.pk])).content.decode()
        assert "the text passes (open)" in publish

    @pytest.mark.parametrize("draft", ["{", '{"a": 1}', '"text"', "[1]", "[[]]", "null", '["\\u0000"]'])
    def test_never_fails_on_a_bad_draft(self, admin: Client, draft: str) -> None:
        page = admin.post(reverse("admin:safety_policy_add"), self.form(draft_rules=draft))
        assert page.status_code in (200, 302)

    def test_saves_publishes_and_shows_a_policy(self, admin: Client, pushed: SyncRedis) -> None:
        saved = admin.post(reverse("admin:safety_policy_add"), self.form(draft_rules=json.dumps(RULES)))
        assert saved.status_code == 302
        policy = Policy.objects.get()
        published = admin.post(reverse("admin:safety_policy_publish_one", args=[policy.pk]))
        assert published.status_code == 302
        assert selectors.find_published(policy_id=str(policy.pk)) is not None
        assert PolicyVersion.objects.get().published_by == "ada"
        for name, args in (
            ("policy_changelist", []),
            ("policy_change", [policy.pk]),
            ("policyversion_changelist", []),
            ("policyversion_change", [PolicyVersion.objects.get().pk]),
        ):
            page = admin.get(reverse(f"admin:safety_{name}", args=args))
            assert page.status_code == 200
        assert "version 1" in admin.get(reverse("admin:safety_policy_changelist")).content.decode()

    @pytest.mark.parametrize(
        ("draft", "said"),
        [
            ("[" * 5_000, "nested deeper than 32 levels"),
            ("[" * 5_000 + "]" * 5_000, "nested deeper than 32 levels"),
            ("[" * 500 + "]" * 500, "nested deeper than 32 levels"),
            (json.dumps([{**RULES[0], "name": "\ud800"}]), "half of a surrogate pair"),
            ('[{"\\ud800": 1}]', "half of a surrogate pair"),
            ("[1e999]", "a number is too large"),
            ("[NaN]", "NaN is not a number"),
            (f"[{'9' * 5_000}]", "4300"),
            ("[1,", "Expecting value (line 1, column 4)"),
        ],
        ids=lambda value: value[:30],
    )
    @pytest.mark.parametrize("saved", [False, True], ids=["add", "change"])
    def test_draws_a_draft_that_cannot_be_read_again_and_says_why(
        self, admin: Client, draft: str, said: str, saved: bool
    ) -> None:
        policy = services.create_policy(name="demo", rules=RULES) if saved else None
        url = reverse("admin:safety_policy_change", args=[policy.pk]) if policy else reverse("admin:safety_policy_add")
        page = admin.post(url, self.form(draft_rules=draft))
        assert page.status_code == 200
        assert "This cannot be read as rules: " in page.content.decode()
        assert said in page.content.decode()
        assert draft[:100] in html.unescape(page.content.decode())
        assert [found.draft_rules for found in Policy.objects.all()] == ([RULES] if saved else [])

    def test_publishes_by_post_only_and_with_the_forms_token(self, admin: Client, pushed: SyncRedis) -> None:
        policy = services.create_policy(name="demo", rules=RULES)
        url = reverse("admin:safety_policy_publish_one", args=[policy.pk])
        admin.handler.enforce_csrf_checks = True
        page = admin.get(url)
        assert page.status_code == 200
        assert "Publish the draft of demo" in page.content.decode()
        assert admin.head(url).status_code == 200
        assert admin.post(url).status_code == 403
        assert not PolicyVersion.objects.exists()
        policy.refresh_from_db()
        assert policy.published_version == 0
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.content.decode())
        assert token is not None
        done = admin.post(url, {"csrfmiddlewaretoken": token[1]})
        assert done.headers["Location"] == reverse("admin:safety_policy_change", args=[policy.pk])
        assert PolicyVersion.objects.get().version == 1

    def test_tries_a_draft_on_a_text(self, admin: Client) -> None:
        policy = services.create_policy(name="demo", rules=RULES)
        url = reverse("admin:safety_policy_try_one", args=[policy.pk])
        assert url in admin.get(reverse("admin:safety_policy_change", args=[policy.pk])).content.decode()
        assert "Chunk by chunk" not in admin.get(url).content.decode()
        body = {"stage": "output", "text": "<b>pay 4111 1111 1111 1111"}
        page = admin.post(url, body).content.decode()
        told = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))
        assert "It passes, redacted. Rules of the draft. What leaves: <b>pay [number] Rule Kind" in told
        assert "cards pii redact ran 1 " in told
        assert "Chunk by chunk" in told
        page = admin.post(url, {"stage": "prompt", "text": "a Weir-Blocked-Word"}).content.decode()
        assert "It is blocked.</b> By the rule “banned-words”." in html.unescape(page)
        refused = admin.post(url, {"stage": "prompt", "text": "é" * 40_000}).content.decode()
        assert "At most 65536 bytes" in refused

    def form(self, **changes: str) -> dict[str, str]:
        inline = {f"versions-{name}_FORMS": "0" for name in ("TOTAL", "INITIAL", "MIN_NUM", "MAX_NUM")}
        return {"name": "demo", "description": "", "draft_rules": "[]", **inline, **changes}


@pytest.mark.django_db(transaction=True)
class TestGatewayReadsWhatTheAdminPublished:
    async def test_through_redis(self, redis: Redis, valkey_url: str, settings: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(settings.ENV, "redis_url", type(settings.ENV.redis_url)(valkey_url))

        def publish() -> PolicyVersion:
            policy = services.create_policy(name="demo", rules=RULES)
            version = services.publish_policy(policy_id=str(policy.pk), published_by="ada")
            connection.close()  # this thread's own
            return version

        version = await sync_to_async(publish)()
        ref = PolicyRef(policy_id=str(version.policy_id), version=1)
        assert (await PolicyStore(redis).get(ref)).policy_id == str(version.policy_id)
