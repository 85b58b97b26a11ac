"""`manage.py down`: stops what `up` started here, and what a killed one left."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.local.launch import take_down
from controlplane.local.output import open_console
from controlplane.local.paths import Layout
from controlplane.local.postgres import remove_cluster


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--remove-data", action="store_true", help="remove the state directory afterwards")

    def handle(self, *args: Any, **options: Any) -> None:
        layout, console = Layout.of_clone(), open_console()
        code = take_down(layout=layout, console=console)
        if code == 0 and options["remove_data"]:
            remove_cluster(wanted=layout.data / "postgres")
            layout.remove()
            console.print(f"Removed {layout.state}.", markup=False)
        sys.exit(code)
