"""The sign-in's own system check for `manage.py check --deploy`. Registered by `apps.py`."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register


@register(Tags.security, deploy=True)
def second_factor_is_asked_for(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """weir.signin.W001: in production a password alone opens no console."""
    if settings.REQUIRE_SECOND_FACTOR:
        return []
    message = "The console asks for no second factor."
    return [Warning(message, hint="Leave WEIR_REQUIRE_MFA out, or set it to 1.", id="weir.signin.W001")]
