"""Celery beat's scheduler, with a pulse. Named by `celery beat -S`.

Invariant: the pulse comes from `tick`, which is beat's whole work; a beat that cannot publish has none.
"""

from typing import Any

from celery.beat import PersistentScheduler
from django.conf import settings

from stores.pulse import PULSE_SECONDS, pulse_file, touch


class PulsingScheduler(PersistentScheduler):  # type: ignore[misc]  # celery has no types
    """The schedule in a file, as Celery keeps it."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Publishes what is due. Returns after how many seconds it wants to be called again, PULSE_SECONDS at most."""
        wait: float = super().tick(*args, **kwargs)
        touch(path=pulse_file(home=settings.ENV.home, name="beat"))
        return min(wait, PULSE_SECONDS)
