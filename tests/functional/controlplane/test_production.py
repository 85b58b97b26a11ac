"""Production settings, as a process of its own reads them."""

import json
import os
import subprocess
import sys

import pytest

from controlplane.env import ROOT

PRODUCTION = {
    "WEIR_PRODUCTION": "1",
    "WEIR_SECRET": "a-root-secret-of-forty-random-characters",
    "WEIR_ALLOWED_HOSTS": "weir.example",
    "CLICKHOUSE_URL": "clickhouse://weir:x@clickhouse:9000/weir",
    "DATABASE_URL": "postgresql://weir:x@postgres/weir",
    "REDIS_URL": "rediss://:x@redis:6379/0",
}
SHOWN = (
    "DEBUG", "SESSION_COOKIE_SECURE", "SESSION_COOKIE_HTTPONLY", "SESSION_COOKIE_NAME", "CSRF_COOKIE_SECURE",
    "CSRF_COOKIE_NAME", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS", "REQUIRE_SECOND_FACTOR", "ALLOWED_HOSTS",
    "MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN", "SESSION_EXPIRE_AT_BROWSER_CLOSE",
)  # fmt: skip


def run(*arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    env |= {"PYTHONPATH": "platform:.", "WEIR_HOME": os.environ["WEIR_HOME"]} | PRODUCTION | changed
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def settings(**changed: str) -> dict[str, object]:
    code = (
        "import json; from django.conf import settings as s; "
        f"print(json.dumps({{name: getattr(s, name) for name in {SHOWN!r}}}))"
    )
    done = run("-c", code, DJANGO_SETTINGS_MODULE="controlplane.settings", **changed)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


class TestProduction:
    def test_passes_django_s_own_deployment_check_without_a_warning(self) -> None:
        done = run("manage.py", "check", "--deploy", "--fail-level", "WARNING")
        assert (done.returncode, "no issues" in done.stdout + done.stderr) == (0, True), done.stderr

    @pytest.mark.parametrize(
        ("name", "value", "check"),
        [
            ("WEIR_SECRET", "local-development-secret-not-for-production", "weir.E001"),
            ("WEIR_ALLOWED_HOSTS", "*", "weir.E002"),
            ("WEIR_ALLOWED_HOSTS", "", "weir.E002"),
            ("CLICKHOUSE_URL", "chdb+unix:///run/meter.sock", "weir.E003"),
            ("WEIR_DEBUG", "1", "security.W018"),
            ("WEIR_REQUIRE_MFA", "0", "weir.signin.W001"),
        ],
    )
    def test_says_what_is_not_fit_for_it(self, name: str, value: str, check: str) -> None:
        done = run("manage.py", "check", "--deploy", "--fail-level", "WARNING", **{name: value})
        assert (done.returncode, check in done.stderr) == (1, True), done.stderr

    def test_locks_cookies_to_tls_and_this_host_and_asks_for_a_second_factor(self) -> None:
        found = settings()
        assert found == {
            "DEBUG": False, "SESSION_COOKIE_SECURE": True, "SESSION_COOKIE_HTTPONLY": True,
            "SESSION_COOKIE_NAME": "__Host-session", "CSRF_COOKIE_SECURE": True, "CSRF_COOKIE_NAME": "__Host-csrf",
            "SECURE_SSL_REDIRECT": True, "SECURE_HSTS_SECONDS": 31_536_000, "REQUIRE_SECOND_FACTOR": True,
            "ALLOWED_HOSTS": ["weir.example"], "MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN": False,
            "SESSION_EXPIRE_AT_BROWSER_CLOSE": True,
        }  # fmt: skip

    def test_a_local_demo_signs_in_at_once_and_may_ask_for_a_second_factor_too(self) -> None:
        local = settings(WEIR_PRODUCTION="0")
        assert (local["REQUIRE_SECOND_FACTOR"], local["SESSION_COOKIE_SECURE"]) == (False, False)
        assert settings(WEIR_PRODUCTION="0", WEIR_REQUIRE_MFA="1")["REQUIRE_SECOND_FACTOR"] is True
