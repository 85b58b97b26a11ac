"""One root secret, another key for each purpose (HKDF, RFC 5869): a token of one is worthless for another."""

import hashlib
import hmac

_SALT = b"weir/v1"
KEY_PEPPER = "api-key-pepper"
CACHE_SALT = "engine-cache-salt"
DJANGO = "django-secret-key"
CONSOLE_SECOND_FACTOR = "console-second-factor"
WEBHOOK_SECRETS = "webhook-secrets"
BACKGROUND = "background-requests"


def derive(secret: str, label: str) -> bytes:
    """32 bytes for the purpose `label`. Raises ValueError for a root secret under 32 characters."""
    if len(secret) < 32:
        raise ValueError("WEIR_SECRET must have at least 32 characters")
    extracted = hmac.new(_SALT, secret.encode(), hashlib.sha256).digest()
    return hmac.new(extracted, label.encode() + b"\x01", hashlib.sha256).digest()


def cache_salt(secret: bytes, *, tenant_id: str) -> str:
    """The engine's `cache_salt` of a tenant: equal prompts of two tenants never share a prefix block."""
    return hmac.new(secret, tenant_id.encode(), hashlib.sha256).hexdigest()
