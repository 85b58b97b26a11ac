"""`manage.py operator NAME [--unlock] [--reset-second-factor] [--sign-out]`: help for who cannot get into the console.

Without a flag it says how the account stands. Each change is written to the audit trail.
"""

from argparse import ArgumentParser
from typing import Any

from allauth.mfa.models import Authenticator
from axes.models import AccessAttempt
from axes.utils import reset
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from controlplane.signin.events import tell

SESSIONS_AT_ONCE = 500


class Command(BaseCommand):
    help = "Show, unlock or reset an account of the console."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--unlock", action="store_true", help="forget its wrong passwords and codes")
        parser.add_argument(
            "--reset-second-factor", action="store_true", help="remove a lost second factor and end its sessions"
        )
        parser.add_argument("--sign-out", action="store_true", help="end its sessions")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no account {options['username']!r}.")
        if options["unlock"]:
            reset(username=user.username)
            self._done(user, "operator.unlocked", "Its wrong answers are forgotten.")
        if options["reset_second_factor"]:
            Authenticator.objects.filter(user=user).delete()
            self._done(user, "operator.second_factor_reset", "It has no second factor; the next sign-in asks for one.")
        if options["sign_out"] or options["reset_second_factor"]:
            self._done(user, "operator.signed_out", f"{end_sessions(user)} sessions ended.")
        self._show(user)

    def _done(self, user: User, event: str, sentence: str) -> None:
        tell(event, None, user.username)
        self.stdout.write(sentence)

    def _show(self, user: User) -> None:
        role = "superuser" if user.is_superuser else ", ".join(user.groups.values_list("name", flat=True)) or "no role"
        factors = ", ".join(Authenticator.objects.filter(user=user).values_list("type", flat=True)) or "none"
        attempts = AccessAttempt.objects.filter(username=user.username)
        wrong = max(attempts.values_list("failures_since_start", flat=True), default=0)
        entry = "active" if user.is_active and user.is_staff else "may not sign in"
        self.stdout.write(f"{user.username}: {entry}, {role}; second factor: {factors}; wrong answers: {wrong}")


def end_sessions(user: User) -> int:
    """Delete an account's sessions; returns how many there were."""
    mine = [
        session.session_key
        for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator(chunk_size=SESSIONS_AT_ONCE)
        if session.get_decoded().get(SESSION_KEY) == str(user.pk)
    ]
    Session.objects.filter(session_key__in=mine).delete()
    return len(mine)
