"""The two questions of a sign-in. Both count their wrong answers, and both are closed while an account is locked."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allauth.account.forms import LoginForm
from allauth.core import context
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from axes.handlers.proxy import AxesProxyHandler
from django.core.exceptions import ValidationError
from django.db import connection, transaction

LOCKED = "This account is locked after too many wrong answers. Wait, or have an operator unlock it."
BUSY = "Another sign-in to this account is under way. Try again."


@contextmanager
def one_at_a_time(username: str) -> Iterator[None]:
    """One answer for an account at once, so that a hundred parallel guesses are counted like a hundred in a row.

    An advisory lock of PostgreSQL, held until the failure's count is committed. Raises ValidationError instead of
    waiting, so that guesses cannot pile up.
    """
    number = int.from_bytes(hashlib.sha256(b"sign-in\0" + username.encode()).digest()[:8], "big", signed=True)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        if not cursor.fetchone()[0]:
            raise ValidationError(BUSY, code="busy")
        refusal: ValidationError | None = None
        try:
            yield
        except ValidationError as error:  # the count of a wrong answer must be committed, not rolled back
            refusal = error
    if refusal is not None:
        raise refusal


class SignInForm(LoginForm):  # type: ignore[misc]  # allauth has no types
    """Name and password of a member of staff; anybody else is answered like a wrong password."""

    def clean(self) -> Any:
        if self._errors:
            return self.cleaned_data
        with one_at_a_time(self.cleaned_data["login"]):
            cleaned = super().clean()
            if self.user is not None and not self.user.is_staff:
                raise ValidationError("The username and/or password you specified are not correct.", code="not_staff")
            return cleaned


class _CountedCode:
    """A code of the second factor is guessed as often as a password, not more."""

    user: Any

    def clean_code(self) -> str:
        username = self.user.get_username()
        with one_at_a_time(username):
            if not AxesProxyHandler.is_allowed(context.request, {"username": username}):
                raise ValidationError(LOCKED, code="locked")
            return str(super().clean_code())  # type: ignore[misc]  # the form that this is mixed into


class SecondFactorForm(_CountedCode, AuthenticateForm):  # type: ignore[misc]
    """The second step of a sign-in."""


class StepUpForm(_CountedCode, ReauthenticateForm):  # type: ignore[misc]
    """The second factor, asked again of a person who is signed in."""
