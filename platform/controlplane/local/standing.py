"""Local mode: `make up` where the platform runs already: is what it runs what was asked for? Called by `launch`.

Invariant: nothing that was asked for is silently left out. What runs is read from the file that its start wrote, not
guessed; values are not shown, as they may be secret, but for port and engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from dotenv import dotenv_values

from controlplane.local.paths import Layout
from controlplane.local.plan import SHARED, choose_engine, find_asked_port

# The start sets them itself, whatever they were before.
_OWN = frozenset(
    {"WEIR_HOME", "WEIR_PORT", "WEIR_HOST", "WEIR_ENGINE", "WEIR_ENGINE_PYTHON", "WEIR_GATEWAY_ID", "WEIR_WORKER_ID"}
)
_ENGINE_NAMES = ("ENGINE", "WEIR_ENGINE", "ENGINE_URL")


def find_ignored(*, layout: Layout, settings: Mapping[str, str]) -> str:
    """What was asked for and does not run, as the rest of a sentence; empty when all of it does. Raises PlanFailed."""
    port = find_asked_port(settings=settings)
    engine = choose_engine(settings=settings) if any(settings.get(name) for name in _ENGINE_NAMES) else None
    if not layout.run_file.exists():  # what the file says is of the start before
        return "it is just being started, with what it was told then" if port is not None or engine is not None else ""
    running = dotenv_values(layout.env_file)
    differences = []
    if port is not None and str(port) != running.get("WEIR_PORT"):
        differences.append(f"it listens on port {running.get('WEIR_PORT')}, not {port}")
    if engine is not None and engine != running.get("WEIR_ENGINE"):
        differences.append(f"its engine is {running.get('WEIR_ENGINE')}, not {engine}")
    named = [name for name in settings if name in SHARED or name.startswith("WEIR_")]
    others = [name for name in named if settings[name] and name not in _OWN and settings[name] != running.get(name)]
    if others:
        differences.append(f"it was started with another {', '.join(sorted(others))}")
    return "; ".join(differences)
