"""`python -m controlplane.local up`: what `manage.py up` does, two seconds earlier, because Django is not loaded."""

import sys
from argparse import ArgumentParser

from controlplane.local.launch import add_arguments, run_up


def main() -> int:
    """Runs `up`. Returns the exit code."""
    parser = ArgumentParser(prog="weir", description="Run the whole platform on this machine.")
    commands = parser.add_subparsers(required=True)
    add_arguments(commands.add_parser("up", help="start everything, stay until Ctrl-C"))
    options = parser.parse_args()
    return run_up(detach=options.detach, with_demo=not options.no_demo)


if __name__ == "__main__":
    sys.exit(main())
