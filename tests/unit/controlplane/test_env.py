"""The environment: only its own names are read, and every URL has its stated default."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu.connection import Connection
from pydantic import ValidationError

from controlplane.env import ROOT, Environment, environment
from controlplane.local.doctor import examine_here
from controlplane.local.paths import Layout
from controlplane.local.plan import read_settings
from controlplane.wiring import gateway_services


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WEIR_HOME", "REDIS_URL", "BROKER_URL", "CLICKHOUSE_URL", "WEIR_POOL", "WEIR_SECRET"):
        monkeypatch.delenv(name, raising=False)
    yield
    environment.cache_clear()


class TestEnvironment:
    @pytest.mark.parametrize("name", ["HOME", "SECRET", "MODEL", "POOL", "DEBUG", "PRODUCTION"])
    def test_reads_no_variable_of_somebody_else(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        before = Environment()
        monkeypatch.setenv(name, "1")
        assert Environment() == before

    def test_takes_former_secrets_and_proxies_as_lists_and_checks_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEIR_SECRET_OLD", f"{'a' * 32}, {'b' * 32}")
        monkeypatch.setenv("WEIR_TRUSTED_PROXIES", "10.0.0.0/8,2001:db8::/32")
        found = Environment()
        assert (found.old_secrets, found.proxies) == (("a" * 32, "b" * 32), ("10.0.0.0/8", "2001:db8::/32"))
        for name, wrong in (("WEIR_SECRET_OLD", "short"), ("WEIR_TRUSTED_PROXIES", "10.0.0.1/8")):
            with monkeypatch.context() as patch:
                patch.setenv(name, wrong)
                with pytest.raises(ValidationError):
                    Environment()

    def test_keeps_its_data_in_the_clone_by_default(self) -> None:
        assert Environment().home == ROOT / ".weir"

    def test_gives_the_broker_a_database_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDIS_URL", "redis://:secret@host:1234/0")
        assert Environment().broker == "redis://:secret@host:1234/1"

    @pytest.mark.parametrize(
        ("name", "url", "wanted"),
        [
            ("REDIS_URL", "rediss://:s@host:1/0", ssl.CERT_REQUIRED),
            ("REDIS_URL", "rediss://:s@host:1/0?health_check_interval=5", ssl.CERT_REQUIRED),
            ("REDIS_URL", "rediss://:s@host:1/0?health_check_interval=5&ssl_cert_reqs=none", ssl.CERT_NONE),
            ("BROKER_URL", "rediss://:s@host:1/0", ssl.CERT_REQUIRED),
            ("BROKER_URL", "rediss://:s@host:1/0?ssl_cert_reqs=none", ssl.CERT_NONE),
        ],
    )
    def test_has_the_broker_s_certificate_checked_unless_told_otherwise(
        self, monkeypatch: pytest.MonkeyPatch, name: str, url: str, wanted: ssl.VerifyMode
    ) -> None:
        monkeypatch.setenv(name, url)
        found = Connection(Environment().broker).ssl  # type: ignore[no-untyped-call]
        assert found["ssl_cert_reqs"] == wanted

    def test_takes_a_broker_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BROKER_URL", "amqp://host")
        assert Environment().broker == "amqp://host"

    def test_serves_the_model_s_pool_unless_told_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Environment().pool_name == Environment().model
        monkeypatch.setenv("WEIR_POOL", "gpu")
        assert Environment().pool_name == "gpu"

    def test_finds_what_make_up_wrote_below_the_dotenv(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "env").write_text("REDIS_URL=redis://127.0.0.1:7777/0\n")
        monkeypatch.setenv("WEIR_HOME", str(tmp_path))
        environment.cache_clear()
        assert environment().redis == "redis://127.0.0.1:7777/0"
        monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:8888/0")
        environment.cache_clear()
        assert environment().redis == "redis://127.0.0.1:8888/0"

    def test_reads_the_clone_s_dotenv_above_that_and_below_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.setattr("controlplane.env.ROOT", tmp_path)
        monkeypatch.setattr(Layout, "of_clone", lambda: Layout(root=tmp_path, state=home))
        monkeypatch.setenv("WEIR_HOME", str(home))
        (home / "env").write_text("REDIS_URL=redis://127.0.0.1:9/0\nS3_URL=http://a:b@127.0.0.1:9/from-up\n")
        (tmp_path / ".env").write_text("REDIS_URL=redis://127.0.0.1:10/0\n")
        assert [environment().redis, self.examined(), read_settings(layout=Layout.of_clone())["REDIS_URL"]] == [
            "redis://127.0.0.1:10/0"
        ] * 3
        monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:11/0")
        environment.cache_clear()
        assert [environment().redis, self.examined(), read_settings(layout=Layout.of_clone())["REDIS_URL"]] == [
            "redis://127.0.0.1:11/0"
        ] * 3

    def examined(self) -> str:
        """The address at which `doctor` looked for Redis."""
        (found,) = [finding for finding in asyncio.run(examine_here()) if finding.name == "Redis"]
        return found.detail.partition(": ")[0]

    @pytest.mark.parametrize(
        ("given", "origins"),
        [("", ()), ("*", ("*",)), ("https://a.example, https://b.example", ("https://a.example", "https://b.example"))],
    )
    def test_takes_browsers_origins_as_a_list(
        self, monkeypatch: pytest.MonkeyPatch, given: str, origins: tuple[str, ...]
    ) -> None:
        monkeypatch.setenv("WEIR_ORIGINS", given)
        monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
        environment.cache_clear()
        assert gateway_services().settings.origins == origins

    def test_refuses_a_short_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEIR_SECRET", "short")
        with pytest.raises(ValidationError, match="32 characters"):
            Environment()

    def test_shows_no_secret_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEIR_SECRET", "canary-" + "x" * 32)
        monkeypatch.setenv("DATABASE_URL", "postgresql://weir:canary-password@host/weir")
        assert "canary" not in repr(Environment())
