"""`manage.py up`: starts the whole platform on this machine, sends one real request, stays until Ctrl-C."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.local.launch import add_arguments, run_up


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with_demo = not options["no_demo"]
        sys.exit(run_up(detach=options["detach"], with_demo=with_demo, until_pid=options["until_pid"]))
