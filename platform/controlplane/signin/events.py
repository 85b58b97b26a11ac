"""Signals of sign-in, answered: wrong codes count for the lock-out, sessions begin, and the audit trail is told.

Connected by `apps.py`.
"""

from typing import Any

from allauth.account.internal.flows.login import record_authentication
from allauth.mfa.signals import authentication_failed, authenticator_added, authenticator_removed
from allauth.mfa.utils import is_mfa_enabled
from axes.signals import user_locked_out
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.db import transaction
from django.dispatch import receiver
from django.http import HttpRequest

from controlplane.signin.sessions import begin
from tenants import events
from tenants.actors import Actor

WITHOUT_SECOND_FACTOR = (
    "You signed in with a password alone: this installation asks for no second factor (WEIR_REQUIRE_MFA). "
    "You can enrol one under «My second factor»; production asks for it."
)


@receiver(authentication_failed)
def count_wrong_code(request: HttpRequest, user: Any, **kwargs: Any) -> None:
    """django-axes counts it like a wrong password."""
    user_login_failed.send(sender="controlplane.signin", credentials={"username": user.get_username()}, request=request)


@receiver(user_logged_in)
def begin_session(request: HttpRequest | None, user: Any, **kwargs: Any) -> None:
    if request is not None:  # None: signed in by a program
        begin(request)
        tell("operator.signed_in", request, user.get_username())
        if not settings.REQUIRE_SECOND_FACTOR and not is_mfa_enabled(user):
            messages.info(request, WITHOUT_SECOND_FACTOR, fail_silently=True)


@receiver(user_locked_out)
def tell_of_lock(request: HttpRequest, username: str, **kwargs: Any) -> None:
    tell("operator.locked_out", request, str(username)[:150])


@receiver(authenticator_added)
def trust_what_was_just_proved(request: HttpRequest, user: Any, authenticator: Any, **kwargs: Any) -> None:
    """Who enrols a factor has just used it: this session need not prove it again."""
    record_authentication(request, user, "mfa", id=authenticator.pk, type=authenticator.type)
    tell("operator.second_factor_added", request, user.get_username(), kind=authenticator.type)


@receiver(authenticator_removed)
def tell_of_removal(request: HttpRequest, user: Any, authenticator: Any, **kwargs: Any) -> None:
    tell("operator.second_factor_removed", request, user.get_username(), kind=authenticator.type)


def tell(name: str, request: HttpRequest | None, username: str, **after: Any) -> None:
    """Write one line of the audit trail."""
    address = request.META.get("REMOTE_ADDR") if request is not None else None
    actor = Actor(name=f"user:{username}" if request is not None else "system:command", address=address or None)
    with transaction.atomic():
        events.record(name, tenant_id=None, subject=f"user:{username}", actor=actor, after=after)
