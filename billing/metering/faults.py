"""Kills the process at a named point when the environment says so: `FAULT=meter.after_insert`.

`FAULT=meter.after_insert:2` dies when the point is passed for the second time. Crash tests set it; nothing else does.
It is a real SIGKILL: no handler, no `finally`, no flush.
"""

import os
import signal
from collections import Counter

VARIABLE = "FAULT"

_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Die here, as by `kill -9`, when FAULT names this point and this passing of it."""
    wanted, _, number = os.environ.get(VARIABLE, "").partition(":")
    if wanted != name:
        return
    _passed[name] += 1
    if _passed[name] == int(number or 1):
        os.kill(os.getpid(), signal.SIGKILL)
