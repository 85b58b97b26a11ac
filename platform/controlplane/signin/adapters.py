"""What django-allauth asks of us: nobody signs up, second factors are encrypted, and who just signed in may enrol.

Called by allauth by the names in settings. Invariant: a TOTP secret or recovery seed in the database is worthless
without the root secret.
"""

import base64
from typing import Any, cast

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.login import get_authentication_records
from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.utils import is_mfa_enabled
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone

from controlplane.env import environment
from stores.secrets import CONSOLE_SECOND_FACTOR, derive

# Who gave the password, and the second factor if there is one, this long ago need not give it again.
FRESH_SECONDS = 300


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """Accounts are made by a superuser or by `manage.py`, never by a visitor."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """The password is asked again, except right after all was given: to enrol, and to see one's new codes."""
        required = bool(super().is_reauthentication_required(app=app, **kwargs))
        request = cast("HttpRequest", context.request)
        wanted = "mfa" if is_mfa_enabled(request.user) else "password"
        records = get_authentication_records(request, request.user)
        given = [record["at"] for record in records if record.get("method") == wanted]
        return required and (not given or timezone.now().timestamp() - max(given) > FRESH_SECONDS)


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    """Encrypts what `allauth.mfa` keeps (Fernet: AES-128-CBC and HMAC-SHA256) under a key of its own."""

    def encrypt(self, text: str) -> str:
        return _cipher().encrypt(text.encode()).decode("ascii")

    def decrypt(self, encrypted_text: str) -> str:
        """Raises ValidationError when neither WEIR_SECRET nor WEIR_SECRET_OLD is what it was made under."""
        try:
            return _cipher().decrypt(encrypted_text.encode("ascii")).decode()
        except InvalidToken as error:
            message = "This second factor was made under another WEIR_SECRET; an operator can reset it."
            raise ValidationError(message, code="undecipherable") from error


def _cipher() -> MultiFernet:
    """The root secret of now seals; it and the former ones open."""
    roots = (environment().secret.get_secret_value(), *environment().old_secrets)
    keys = (base64.urlsafe_b64encode(derive(root, CONSOLE_SECOND_FACTOR)) for root in roots)
    return MultiFernet([Fernet(key) for key in keys])
