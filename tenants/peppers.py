"""The secrets under which API keys are digested: the one of the root secret now, then those of former root secrets.

To change it: set WEIR_SECRET to the new one and put the old one into WEIR_SECRET_OLD. New keys are digested under the
new one, a key under an old one is moved when it is next used, and `ApiKey.pepper_id` tells when none is left.
"""

from functools import lru_cache

from django.conf import settings

from stores.secrets import KEY_PEPPER, derive


def peppers() -> tuple[bytes, ...]:
    """The newest first; at least one."""
    env = settings.ENV
    return _derived(env.secret.get_secret_value(), *env.old_secrets)


@lru_cache(maxsize=8)
def _derived(*secrets: str) -> tuple[bytes, ...]:
    return tuple(derive(secret, KEY_PEPPER) for secret in secrets)
