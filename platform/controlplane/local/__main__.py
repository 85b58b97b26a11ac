"""`python -m controlplane.local up`: `manage.py up` without loading Django first; `… engine` makes the engine."""

import signal
import sys
from argparse import ArgumentParser

# A Ctrl-C while the imports below run ends us without a traceback; nothing is started yet.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from controlplane.local.launch import add_arguments, prepare_engine, run_up  # noqa: E402


def main() -> int:
    """Runs `up`. Returns the exit code."""
    parser = ArgumentParser(prog="weir", description="Run the whole platform on this machine.")
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start everything, stay until Ctrl-C")
    add_arguments(up)
    up.set_defaults(
        run=lambda options: run_up(detach=options.detach, with_demo=not options.no_demo, until_pid=options.until_pid)
    )
    engine = commands.add_parser("engine", help="make the engine's environment and the model, start nothing")
    engine.set_defaults(run=lambda options: prepare_engine())
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
