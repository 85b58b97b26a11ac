"""The environment, read once and checked: every store is one URL.

`.env` beside manage.py is read too, and below it `$WEIR_HOME/env`, where `make up` writes the addresses of the stores
that it starts: so a command typed by hand finds them.
"""

import os
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.tenancy import ServiceClass
from stores.clickhouse_url import local_url

ROOT = Path(__file__).resolve().parents[2]
LOCAL_SECRET = "local-development-secret-not-for-production"  # noqa: S105 - refused by `check --deploy`


class Environment(BaseSettings):
    """Settings by environment variable; names are the fields' in upper case, `WEIR_…` where an alias says so."""

    model_config = SettingsConfigDict(extra="ignore")

    home: Path = Field(default=ROOT / ".weir", validation_alias="WEIR_HOME")
    secret: SecretStr = Field(default=SecretStr(LOCAL_SECRET), validation_alias="WEIR_SECRET")
    secret_old: SecretStr = Field(default=SecretStr(""), validation_alias="WEIR_SECRET_OLD")
    receipt_key_file: Path | None = Field(default=None, validation_alias="WEIR_RECEIPT_KEY_FILE")
    issue_invoices: bool = Field(default=False, validation_alias="WEIR_ISSUE_INVOICES")
    trusted_proxies: str = Field(default="", validation_alias="WEIR_TRUSTED_PROXIES")
    debug: bool = Field(default=False, validation_alias="WEIR_DEBUG")
    production: bool = Field(default=False, validation_alias="WEIR_PRODUCTION")
    allowed_hosts: str = Field(default="", validation_alias="WEIR_ALLOWED_HOSTS")
    host: str = Field(default="", validation_alias="WEIR_HOST")
    browser_origins: str = Field(default="", validation_alias="WEIR_ORIGINS")
    require_mfa: bool | None = Field(default=None, validation_alias="WEIR_REQUIRE_MFA")

    database_url: SecretStr = SecretStr("postgresql://weir:weir@127.0.0.1:5432/weir")
    # What a web process may ask of PostgreSQL: seconds of a statement, of a transaction that does nothing; 0 = no end.
    statement_seconds: float = Field(default=15, ge=0, le=3600, validation_alias="WEIR_DATABASE_STATEMENT_SECONDS")
    idle_transaction_seconds: float = Field(default=30, ge=0, le=3600, validation_alias="WEIR_DATABASE_IDLE_SECONDS")
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    broker_url: SecretStr | None = None
    clickhouse_url: SecretStr | None = None
    s3_url: SecretStr | None = None

    # Webhooks: http to this machine itself (development only); ports; networks opened and closed by intent (CIDR).
    webhooks_loopback: bool = Field(default=False, validation_alias="WEIR_WEBHOOKS_LOOPBACK")
    webhooks_ports: str = Field(default="443,8443", validation_alias="WEIR_WEBHOOKS_PORTS")
    webhooks_allow: str = Field(default="", validation_alias="WEIR_WEBHOOKS_ALLOW")
    webhooks_deny: str = Field(default="", validation_alias="WEIR_WEBHOOKS_DENY")

    gateway_id: str = Field(default="", validation_alias="WEIR_GATEWAY_ID")
    # What background requests are queued, priced and billed as; while both classes wait, batch has a fifth of a pool.
    background_class: ServiceClass = Field(default=ServiceClass.INTERACTIVE, validation_alias="WEIR_BACKGROUND_CLASS")
    model: str = Field(default="smollm2-135m-instruct", validation_alias="WEIR_MODEL")
    pool: str = Field(default="", validation_alias="WEIR_POOL")
    model_dir: Path = Field(
        default=ROOT / "infra" / "models" / "smollm2-135m-instruct", validation_alias="WEIR_MODEL_DIR"
    )

    @field_validator("secret")
    @classmethod
    def _secret_is_long(cls, value: SecretStr) -> SecretStr:
        if len(value.get_secret_value()) < 32:
            raise ValueError("must have at least 32 characters")
        return value

    @property
    def second_factor_required(self) -> bool:
        """Whether operators must enrol a second factor: in production, unless WEIR_REQUIRE_MFA says otherwise."""
        return self.production if self.require_mfa is None else self.require_mfa

    @field_validator("secret_old")
    @classmethod
    def _old_secrets_are_long(cls, value: SecretStr) -> SecretStr:
        if any(len(secret) < 32 for secret in _listed(value.get_secret_value())):
            raise ValueError("each must have at least 32 characters")
        return value

    @field_validator("webhooks_ports")
    @classmethod
    def _ports_are_ports(cls, value: str) -> str:
        if not all(port.isdecimal() and 1 <= int(port) <= 65_535 for port in value.split(",")):
            raise ValueError("must be ports with commas between, such as 443,8443")
        return value

    @field_validator("trusted_proxies", "webhooks_allow", "webhooks_deny")
    @classmethod
    def _networks_can_be_read(cls, value: str) -> str:
        for text in _listed(value):
            ip_network(text)
        return value

    @property
    def old_secrets(self) -> tuple[str, ...]:
        """Former root secrets, newest first, under which API keys still count."""
        return _listed(self.secret_old.get_secret_value())

    @property
    def proxies(self) -> tuple[str, ...]:
        """CIDR blocks of the proxies in front, whose X-Forwarded-For is believed."""
        return _listed(self.trusted_proxies)

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of browsers that may call the inference API and open its WebSocket; ("*",) = any."""
        return _listed(self.browser_origins)

    @property
    def redis(self) -> str:
        return self.redis_url.get_secret_value()

    @property
    def broker(self) -> str:
        """Celery and kombu events: their own URL, by default database 1 of the same server."""
        return broker_url(given=self.broker_url.get_secret_value() if self.broker_url else "", redis=self.redis)

    @property
    def clickhouse(self) -> str:
        """The meter's chDB socket below WEIR_HOME unless a server is named."""
        if self.clickhouse_url:
            return self.clickhouse_url.get_secret_value()
        return local_url(Path(self.home) / "run" / "meter.sock")

    @property
    def pool_name(self) -> str:
        return self.pool or self.model


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The process's environment. Raises pydantic's ValidationError naming each wrong variable."""
    home = Path(os.environ.get("WEIR_HOME") or ROOT / ".weir")
    return Environment(_env_file=(home / "env", ROOT / ".env"))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def broker_url(*, given: str, redis: str) -> str:
    """BROKER_URL, or database 1 of REDIS_URL. By TLS, the server's certificate is checked unless the URL says not to.

    (kombu alone takes any certificate from a `rediss://` that does not ask for one, and knows no other option of
    redis-py's.)
    """
    parts = urlsplit(given or redis)
    if not given:
        options = [option for option in parts.query.split("&") if option.startswith("ssl_")]
        parts = parts._replace(path="/1", query="&".join(options))
    if parts.scheme == "rediss" and "ssl_cert_reqs=" not in parts.query:
        parts = parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required"))))
    return urlunsplit(parts)
