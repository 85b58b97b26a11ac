#!/usr/bin/env python3
"""Django's command line with Weir's two source roots on the path."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])

    from controlplane.commandline import run

    run(sys.argv)


if __name__ == "__main__":
    main()
