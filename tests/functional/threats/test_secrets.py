"""T6: each secret has one purpose. T33: secrets are in no representation, report or inspection."""

import itertools

import pytest
from allauth.mfa.adapter import get_adapter
from cryptography.fernet import Fernet
from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.test import RequestFactory
from django.views.debug import ExceptionReporter, get_exception_reporter_filter
from pytest_django import Settings

from controlplane.celery import app
from controlplane.env import Environment, environment
from controlplane.signin import adapters
from stores import secrets as purposes
from tenants.auth.keys import digest, mint

ROOT = "a-root-secret-that-only-tests-use-0123456789"
PASSWORD = "hunter2-of-the-database"
LABELS = {name: label for name, label in vars(purposes).items() if name.isupper() and isinstance(label, str)}


class TestPurposes:
    def test_t06_every_purpose_has_a_key_of_its_own(self) -> None:
        assert len(LABELS) >= 4
        derived = {name: purposes.derive(ROOT, label) for name, label in LABELS.items()}
        assert all(a != b for a, b in itertools.combinations(derived.values(), 2))
        assert ROOT.encode() not in derived.values()

    def test_t06_what_one_purpose_signed_is_refused_by_the_others(self) -> None:
        for mine, other in itertools.permutations(LABELS.values(), 2):
            signed = Signer(key=purposes.derive(ROOT, mine).hex()).sign("admin")
            with pytest.raises(BadSignature):
                Signer(key=purposes.derive(ROOT, other).hex()).unsign(signed)

    def test_t06_a_key_s_digest_is_worth_nothing_under_another_purpose(self) -> None:
        key = mint()
        digests = {digest(key, purposes.derive(ROOT, label)) for label in LABELS.values()}
        assert len(digests) == len(LABELS)

    def test_t06_a_second_factor_cannot_be_read_with_another_root_secret(self) -> None:
        import base64

        foreign = Fernet(base64.urlsafe_b64encode(purposes.derive("x" * 32, purposes.CONSOLE_SECOND_FACTOR)))
        with pytest.raises(ValidationError, match="another WEIR_SECRET"):
            get_adapter().decrypt(foreign.encrypt(b"JBSWY3DPEHPK3PXP").decode())
        assert get_adapter().decrypt(get_adapter().encrypt("JBSWY3DPEHPK3PXP")) == "JBSWY3DPEHPK3PXP"

    def test_t33_a_second_factor_outlives_a_change_of_the_root_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sealed = get_adapter().encrypt("JBSWY3DPEHPK3PXP")
        changed = Environment(WEIR_SECRET="y" * 40, WEIR_SECRET_OLD=ROOT, _env_file=None)  # type: ignore[call-arg]
        monkeypatch.setattr(adapters, "environment", lambda: changed)
        assert get_adapter().decrypt(sealed) == "JBSWY3DPEHPK3PXP"
        forgotten = Environment(WEIR_SECRET="y" * 40, _env_file=None)  # type: ignore[call-arg]
        monkeypatch.setattr(adapters, "environment", lambda: forgotten)
        with pytest.raises(ValidationError):
            get_adapter().decrypt(sealed)

    def test_t06_a_short_root_secret_is_no_secret(self) -> None:
        with pytest.raises(ValueError, match="32"):
            purposes.derive("short", purposes.DJANGO)


class TestShown:
    @pytest.fixture
    def made(self) -> Environment:
        return Environment(
            WEIR_SECRET=ROOT, database_url=f"postgresql://weir:{PASSWORD}@db/weir", redis_url=f"redis://:{PASSWORD}@r/0",
            s3_url=f"http://key:{PASSWORD}@s3/weir", clickhouse_url=f"clickhouse://u:{PASSWORD}@ch/weir",
            _env_file=None,
        )  # type: ignore[call-arg]  # fmt: skip

    def test_t33_the_environment_s_representation_has_none(self, made: Environment) -> None:
        for text in (repr(made), str(made), f"{made}", str(made.model_dump()), made.model_dump_json()):
            for secret in (ROOT, PASSWORD):
                assert secret not in text

    def test_t33_a_crash_report_has_none(
        self, settings: Settings, made: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.DEBUG = True
        settings.ENV = made
        settings.CELERY_BROKER_URL = made.broker
        monkeypatch.setitem(settings.DATABASES["default"], "PASSWORD", PASSWORD)
        request = RequestFactory().get("/admin/")
        shown = str(get_exception_reporter_filter(request).get_safe_settings())
        page = ExceptionReporter(request, ValueError, ValueError("x"), None).get_traceback_html()
        for secret in (PASSWORD, ROOT, settings.SECRET_KEY, purposes.derive(ROOT, purposes.DJANGO).hex()):
            assert secret not in shown
            assert secret not in page

    def test_t33_celery_s_inspection_has_none(self) -> None:
        before = app.conf.broker_url
        try:
            app.conf.broker_url = f"redis://:{PASSWORD}@r/1"
            shown = str(app.conf.table(with_defaults=True, censored=True)) + app.conf.humanize(censored=True)
        finally:
            app.conf.broker_url = before
        assert PASSWORD not in shown
        assert environment().secret.get_secret_value() not in shown
