"""`manage.py up`: starts the whole platform on this machine, sends one real request, stays until Ctrl-C."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from rich.console import Console

from controlplane.local.launch import run_detached, run_foreground
from controlplane.local.paths import Layout


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--detach", action="store_true", help="return when it serves")
        parser.add_argument("--no-demo", action="store_true", help="do not send the demo request")

    def handle(self, *args: Any, **options: Any) -> None:
        layout = Layout.of_clone()
        console = Console(highlight=False)
        if options["detach"]:
            sys.exit(run_detached(layout=layout, console=console))
        sys.exit(run_foreground(layout=layout, console=console, with_demo=not options["no_demo"]))
