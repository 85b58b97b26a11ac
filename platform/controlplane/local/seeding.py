"""Local mode: migrates, makes the demo tenants and writes `demo.json`. Run as one process by the supervisor.

Invariant: `demo.json` (mode 0600) holds keys that work. A key and a password are shown by the seed only when it
makes them, so what an earlier run wrote is kept.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from controlplane.local.paths import write_private


def merge(*, before: dict[str, Any], seeded: dict[str, Any]) -> dict[str, Any]:
    """What the file holds after a seed: new values win, but None means "made earlier" and keeps the old one."""
    return {**before, **{name: value for name, value in seeded.items() if value is not None}}


def main() -> int:
    """Seeds and writes. Returns the exit code."""
    import django

    django.setup()
    from django.core.management import call_command

    from controlplane.seed import seed_demo

    path = Path(os.environ["WEIR_HOME"]) / "demo.json"
    base = f"http://127.0.0.1:{os.environ['WEIR_PORT']}"
    call_command("migrate", interactive=False, verbosity=1)
    before = json.loads(path.read_text()) if path.exists() else {}
    demo = seed_demo(known=(before.get("api_key"), before.get("other_api_key")))
    seeded = {
        "base_url": f"{base}/v1",
        "model": os.environ["WEIR_MODEL"],
        "api_key": demo.api_key,
        "other_api_key": demo.other_api_key,
        "admin_url": f"{base}/admin/",
        "admin_user": demo.admin_user,
        "admin_password": demo.admin_password,
    }
    after = merge(before=before, seeded=seeded)
    missing = [name for name in seeded if after.get(name) is None]
    if missing:
        sys.stderr.write(f"{', '.join(missing)}: made earlier and lost with {path}; `make clean` begins anew\n")
    write_private(path, json.dumps(after, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
