"""Production settings, as a process of its own reads them."""

import json
import os
import re
import subprocess
import sys
from functools import cache

import pytest

from controlplane.env import ROOT
from controlplane.settings import database_from_url

CLOSED = "127.0.0.1:9"  # discard: below every port that is handed out here
PRODUCTION = {
    "WEIR_PRODUCTION": "1",
    "WEIR_SECRET": "a-root-secret-of-forty-random-characters",
    "WEIR_ALLOWED_HOSTS": "weir.example",
    "CLICKHOUSE_URL": f"clickhouse://weir:x@{CLOSED}/weir",
    "DATABASE_URL": f"postgresql://weir:x@{CLOSED}/weir",
    "REDIS_URL": f"rediss://:x@{CLOSED}/0",
    "S3_URL": f"http://key:x@{CLOSED}/weir",
    "ENGINE_URL": f"http://{CLOSED}",
}
NO_SERVER = "weir.E004"  # there is no server at a closed port, and each is said to be missing
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


@cache
def check(**changed: str) -> str:
    """What the deployment check says; every run finds something, for no ClickHouse server is at hand."""
    done = run("manage.py", "check", "--deploy", "--fail-level", "WARNING", **changed)
    assert done.returncode == 1, done.stderr
    return done.stderr


def found_by(said: str) -> list[str]:
    return re.findall(r"\(([\w.]+\.[EW]\d{3})\)", said)


def missing(said: str) -> set[str]:
    return set(re.findall(r"\(weir\.E004\) (\w+):", said))


class TestProduction:
    def test_passes_django_s_own_deployment_check_without_a_warning(self) -> None:
        assert set(found_by(check())) == {NO_SERVER}

    def test_asks_every_server_and_says_how_to_mend_each(self) -> None:
        said = check()
        names = missing(said)
        assert names == {"PostgreSQL", "Redis", "broker", "ClickHouse", "S3", "engine"}, said
        assert said.count("HINT: nothing listens there: start it, or set ") == len(names)
        assert "Traceback" not in said
        assert "set DATABASE_URL to the host and port where it listens" in said
        assert ":x@" not in said

    def test_says_nothing_of_servers_that_are_well(self, postgres_url: str, valkey_url: str, s3_url: str) -> None:
        said = check(DATABASE_URL=postgres_url, REDIS_URL=valkey_url, S3_URL=s3_url)
        assert missing(said) == {"Redis", "ClickHouse", "engine"}
        assert "HINT: set appendonly yes" in said  # the tests' own Redis keeps nothing on disk

    @pytest.mark.parametrize(
        ("name", "value", "identifier"),
        [
            ("WEIR_SECRET", "local-development-secret-not-for-production", "weir.E001"),
            ("WEIR_ALLOWED_HOSTS", "*", "weir.E002"),
            ("WEIR_ALLOWED_HOSTS", "", "weir.E002"),
            ("CLICKHOUSE_URL", "chdb+unix:///run/meter.sock", "weir.E003"),
            ("WEIR_DEBUG", "1", "security.W018"),
            ("WEIR_REQUIRE_MFA", "0", "weir.signin.W001"),
        ],
    )
    def test_says_what_is_not_fit_for_it(self, name: str, value: str, identifier: str) -> None:
        assert identifier in found_by(check(**{name: value}))

    def test_gives_libpq_what_the_database_url_asks_of_it(self) -> None:
        url = f"postgresql://weir:x@{CLOSED}/weir?sslmode=verify-full&sslrootcert=system"
        assert database_from_url(url)["OPTIONS"] == {
            "connect_timeout": 5,
            "sslmode": "verify-full",
            "sslrootcert": "system",
        }

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
