"""Threats to the console, by their numbers (README.md): ways around sign-in, forged forms, scripts in names, errors."""

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler
from django.test import Client
from django.urls import reverse
from pytest_django import Settings
from redis import Redis

from controlplane import views
from controlplane.models import ServedModel
from controlplane.seed import seed_demo
from tenants.actors import SYSTEM
from tenants.models import ApiKey, OutboxEvent, Plan, Tenant
from tenants.services import create_key, create_project, create_tenant

SCRIPTS = [
    "<script>pwned()</script>",
    '"><img src=x onerror=pwned()>',
    "' onmouseover='pwned()",
    '" x-data="pwned()" x-init="pwned()',
    "'); pwned(); ('",
    "${pwned()} {{pwned()}} {% pwned %}",
    "</textarea><svg/onload=pwned()>",
]
OPEN = {"/admin/login/", "/admin/jsi18n/"}


class InlineCode(HTMLParser):
    """Finds what the policy would not let run: scripts without a file, event attributes, javascript: addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script" and "src" not in given and given.get("type") != "application/json":
            self.found.append("script")
        self.found += [name for name in given if name.startswith("on")]
        self.found += [name for name, value in attrs if (value or "").strip().lower().startswith("javascript:")]


@pytest.fixture
def demo(db: None, wired: Redis) -> None:
    seed_demo()


def lists() -> list[str]:
    return [
        reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") for model in admin.site._registry
    ]


def pages(client: Client) -> Iterator[tuple[str, str]]:
    """Every page that the console leads to: lists, forms to add, the first rows."""
    own = [reverse(name) for name in ("recent_requests", "usage", "engines", "limits", "refusals", "mfa_index")]
    for path in ["/admin/", "/admin/login/", "/admin/password_change/", *own, *lists()]:
        page = client.get(path).content.decode()
        yield path, page
        for row in re.findall(rf'href="({re.escape(path)}[^"?]+/)"', page)[:4]:
            answer = client.get(row)
            if answer.headers.get("content-type", "").startswith("text/html"):
                yield row, answer.content.decode()


class TestWaysAroundSignIn:
    @pytest.mark.parametrize("host", ["x/?", "x/#", "x@testserver", "testserver:80@evil", "TESTSERVER", "testserver."])
    def test_t05_no_host_opens_the_console(self, db: None, wired: Redis, client: Client, host: str) -> None:
        answer = client.get("/admin/tenants/tenant/", HTTP_HOST=host)
        assert answer.status_code in (302, 400)
        assert answer.get("location", "/admin/login/").startswith("/admin/login/")

    @pytest.mark.parametrize(
        "path",
        [
            "//admin/", "/admin//", "/ADMIN/", "/admin/../admin/tenants/tenant/", "/./admin/", "/admin/login/../",
            "/admin/tenants/tenant/;x", "/admin/tenants/tenant/\x00", "/admin/login//tenants/tenant/",
            "/api/../admin/", "/admin\\tenants", "/static/../admin/", "/admin/%2e%2e/admin/tenants/",
        ],
    )  # fmt: skip
    def test_t05_no_path_opens_the_console(self, db: None, wired: Redis, client: Client, path: str) -> None:
        answer = client.get("/", PATH_INFO=path)
        assert answer.status_code in (301, 302, 400, 404)
        assert re.fullmatch(r"/admin/login/.*|/admin/|", answer.get("location", ""))

    def test_t30_every_page_asks_a_stranger_to_sign_in(self, db: None, wired: Redis, client: Client) -> None:
        for path in [*lists(), "/admin/", "/admin/requests/", "/admin/usage/", "/admin/engines/",
                     "/admin/limits/", "/admin/refusals/", "/admin/security/", "/admin/security/totp/activate/",
                     "/admin/security/recovery-codes/", "/admin/security/recovery-codes/download/",
                     "/admin/security/webauthn/", "/admin/password_change/"]:  # fmt: skip
            answer = client.get(path)
            assert (answer.status_code, answer["location"].split("?")[0]) == (302, "/admin/login/"), path

    def test_t22_an_underscore_is_no_hyphen_in_a_proxy_s_header(self, settings: Settings) -> None:
        """CVE-2026-3902: `X_Forwarded_Proto` passed a proxy that strips `X-Forwarded-Proto`."""
        settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
        settings.SECURE_SSL_REDIRECT = True
        assert answer_to("/nowhere", [(b"x-forwarded-proto", b"https")])["status"] == 404
        for name in (b"x_forwarded_proto", b"x_forwarded-proto", b"X_FORWARDED_PROTO"):
            assert answer_to("/nowhere", [(name, b"https")])["status"] == 301

    def test_t25_a_session_in_an_address_is_no_session(
        self, operator: Client, wired: Redis, settings: Settings
    ) -> None:
        stolen = operator.cookies[settings.SESSION_COOKIE_NAME].value
        other = Client()
        for query in (f"?{settings.SESSION_COOKIE_NAME}={stolen}", f"?session={stolen}"):
            assert other.get(f"/admin/{query}").status_code == 302


def answer_to(path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The head of Django's answer to a raw ASGI request."""
    from asgiref.sync import async_to_sync

    async def ask() -> dict[str, Any]:
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"testserver"), *headers], "http_version": "1.1", "scheme": "http",
            "server": ("testserver", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        handler = ApplicationCommunicator(ASGIHandler(), scope)
        await handler.send_input({"type": "http.request", "body": b"", "more_body": False})
        head = await handler.receive_output(timeout=10)
        await handler.receive_output(timeout=10)
        await handler.wait(timeout=10)
        return dict(head)

    return async_to_sync(ask)()


class TestForgedForms:
    """CSRF (T30): a form of another site has the cookies, but not the token."""

    @pytest.fixture
    def victim(self, demo: None) -> Client:
        client = Client(enforce_csrf_checks=True)
        client.force_login(User.objects.get(username="admin"))
        return client

    def test_t30_no_form_of_the_console_is_taken_without_its_token(self, victim: Client) -> None:
        tenant, plan = Tenant.objects.get(name="Acme"), Plan.objects.get()
        paths = [
            *lists(), reverse("admin:tenants_tenant_change", args=[tenant.pk]), reverse("admin:tenants_apikey_add"),
            reverse("admin:tenants_plan_change", args=[plan.pk]), "/admin/login/", "/admin/logout/",
            "/admin/password_change/", "/admin/security/confirm/", "/admin/security/sign-out/",
            "/admin/security/recovery-codes/generate/",
        ]  # fmt: skip
        before = (OutboxEvent.objects.count(), ApiKey.objects.count(), User.objects.count())
        answers = {path: victim.post(path, {"action": "suspend", "_selected_action": str(tenant.pk)}) for path in paths}
        assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 403)
        assert (OutboxEvent.objects.count(), ApiKey.objects.count(), User.objects.count()) == before

    def test_t30_the_management_api_takes_no_session_without_the_token(self, victim: Client) -> None:
        answer = victim.post("/api/v1/tenants", {"name": "forged"}, content_type="application/json")
        assert answer.status_code == 403
        assert not Tenant.objects.filter(name="forged").exists()

    def test_t30_a_link_changes_nothing(self, victim: Client) -> None:
        tenant = Tenant.objects.first()
        assert tenant
        before = OutboxEvent.objects.count()
        for path in (
            "/admin/logout/", "/admin/security/recovery-codes/generate/", "/admin/security/totp/deactivate/",
            f"/admin/tenants/tenant/?action=suspend&_selected_action={tenant.pk}",
        ):  # fmt: skip
            victim.get(path)
        assert OutboxEvent.objects.count() == before
        assert victim.get("/admin/").status_code == 200

    def test_t30_every_change_leaves_who_what_and_from_where(self, demo: None, client: Client) -> None:
        client.force_login(User.objects.get(username="admin"))
        tenant = Tenant.objects.get(name="Acme")
        client.post(
            reverse("admin:tenants_tenant_changelist"),
            {"action": "suspend", "_selected_action": str(tenant.pk)},
            REMOTE_ADDR="198.51.100.7",
        )
        event = OutboxEvent.objects.get(name="tenant.suspended")
        assert (event.body["actor"], event.body["address"]) == ("user:admin", "198.51.100.7")
        assert event.body["before"] != event.body["after"]


class TestScripts:
    @pytest.fixture
    def hostile(self, demo: None) -> None:
        """Names of every kind that hold what would be a script."""
        plan = Plan.objects.get()
        for number, text in enumerate(SCRIPTS):
            tenant = create_tenant(name=f"{text} {number}", plan=plan, actor=SYSTEM)
            project = create_project(tenant=tenant, name=text, actor=SYSTEM)
            create_key(project=project, name=text, scopes=("inference",), actor=SYSTEM)
        ServedModel.objects.create(name="toy", pool="toy", tokenizer_dir=SCRIPTS[1])

    def test_t30_names_are_text_on_every_page(self, hostile: None, operator: Client) -> None:
        seen = 0
        for path, page in pages(operator):
            for text in SCRIPTS:
                assert text not in page or text.startswith("$"), f"{text} stands as it is in {path}"
                seen += text in unescape(page)
        assert seen >= len(SCRIPTS) * 3

    def test_t30_no_page_holds_an_inline_script_and_each_forbids_them(self, hostile: None, operator: Client) -> None:
        count = 0
        for path, page in pages(operator):
            parser = InlineCode()
            parser.feed(page)
            assert parser.found == [], path
            count += 1
        assert count >= 25

    @pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/admin/tenants/tenant/", "/api/docs/", "/nowhere"])
    def test_t30_every_answer_carries_the_policy(self, demo: None, operator: Client, path: str) -> None:
        answer = operator.get(path)
        policy = dict(part.strip().partition(" ")[::2] for part in answer["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        scripts = {source for source in policy["script-src"].split() if not source.startswith("'nonce-")}
        assert scripts == {"'self'", "'unsafe-eval'"}
        assert "http" not in answer["content-security-policy"]
        assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'", "'none'", "'self'")
        kept = (answer["x-frame-options"], answer["x-content-type-options"], answer["referrer-policy"])
        assert kept == ("DENY", "nosniff", "same-origin")
        assert answer["cross-origin-opener-policy"] == "same-origin"


class TestErrors:
    def test_t21_a_crash_tells_nothing(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch, settings: Settings
    ) -> None:
        def crash(**kwargs: Any) -> None:
            raise RuntimeError(f"object at 0x7f21aa with {settings.SECRET_KEY}")

        monkeypatch.setattr(views.usage_reports, "recent_requests", crash)
        operator.raise_request_exception = False
        answer = operator.get("/admin/requests/")
        assert answer.status_code == 500
        body = answer.content.decode()
        assert answer.json()["error"]["message"] == "Something went wrong on our side."
        assert not re.search(r"0x[0-9a-f]{4}|Traceback|RuntimeError|\.py|site-packages", body)
        assert settings.SECRET_KEY not in body
