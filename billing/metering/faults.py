"""Kills the process at a named point when the environment says so: `FAULT=meter.after_insert`.

Crash tests set it; nothing else does. It is a real SIGKILL: no handler, no `finally`, no flush.
"""

import os
import signal

VARIABLE = "FAULT"


def fault_point(name: str) -> None:
    """Die here, as by `kill -9`, when FAULT names this point."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
