"""What `manage.py` runs: Django's command line, where a store that is away is a sentence and not a traceback.

Called by `manage.py`. Invariant: it holds for every command, those of Django and of libraries too, and changes no other
error. `--traceback` shows where it came from, as it does for a CommandError.
"""

import sys
from collections.abc import Sequence
from typing import Any

from django.core.management import CommandError, ManagementUtility
from django.core.management.base import BaseCommand
from pydantic import ValidationError


class Utility(ManagementUtility):
    """Its commands tell an outage as a CommandError: one line, exit code 1."""

    def fetch_command(self, subcommand: str) -> BaseCommand:
        command = super().fetch_command(subcommand)
        execute = command.execute

        def explained(*args: Any, **options: Any) -> str | None:
            try:
                return execute(*args, **options)
            except Exception as error:
                raise_explained(error)
                raise

        command.execute = explained  # type: ignore[method-assign]  # Django offers no other place for every command
        return command


def raise_explained(error: Exception) -> None:
    """Raises CommandError with the sentence for an outage; returns for any other error.

    What a command says itself of it comes first: it knows what was done until then.
    """
    from controlplane.outages import explain  # settings must be there before it

    sentence = explain(error)
    if sentence is None:
        return
    if isinstance(error, CommandError):
        raise CommandError(f"{error}; {sentence}", returncode=error.returncode) from error
    raise CommandError(sentence) from error


def run(argv: Sequence[str]) -> None:
    """Runs the command that `argv` names. Ends the process by SystemExit where Django does, with 1 for an error."""
    try:
        Utility(list(argv)).execute()
    except ValidationError as error:  # the settings, before any command is there to say so
        from controlplane.outages import explain

        sentence = explain(error)
        if sentence is None or "--traceback" in argv:
            raise
        sys.exit(f"CommandError: {sentence}")
    except KeyboardInterrupt:
        sys.exit(130)
