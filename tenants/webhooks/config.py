"""Settings of this room, read where they are used: a test or a process may have its own."""

from django.conf import settings

from stores.secrets import WEBHOOK_SECRETS, derive
from tenants.webhooks.destination import Rules, networks


def rules() -> Rules:
    """What the operator allows. Raises ValueError for a network or port that cannot be read."""
    env = settings.ENV
    return Rules(
        loopback=env.webhooks_loopback and not env.production,
        ports=frozenset(int(port) for port in env.webhooks_ports.split(",")),
        allow=networks(env.webhooks_allow),
        deny=networks(env.webhooks_deny),
    )


def sealing_keys() -> tuple[bytes, ...]:
    """Keys of stored signing secrets: the first seals, those of former root secrets only open."""
    env = settings.ENV
    return tuple(derive(secret, WEBHOOK_SECRETS) for secret in (env.secret.get_secret_value(), *env.old_secrets))
