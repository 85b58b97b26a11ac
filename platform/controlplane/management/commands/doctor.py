"""`manage.py doctor`: tests each configured store and the engine for real, and says how to fix what is wrong."""

import asyncio
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand
from dotenv import dotenv_values
from rich.markup import escape

from controlplane.local.doctor import examine
from controlplane.local.output import open_console
from controlplane.local.paths import Layout
from controlplane.local.ports import PortBook


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        layout, console = Layout.of_clone(), open_console()
        # The strongest last: what `make up` started here, what is written down, what is set now.
        layers = (dotenv_values(layout.env_file), dotenv_values(layout.root / ".env"), os.environ)
        env = {name: value for layer in layers for name, value in layer.items() if value}
        findings = asyncio.run(examine(env=env, ports=PortBook(path=layout.ports_file).all()))
        for finding in findings:
            mark = "[green]✓[/]" if finding.is_good else "[red]✗[/]"
            console.print(f"{mark} {finding.name:<11} {escape(finding.detail)}")
            if finding.fix:
                console.print(f"              [yellow]→ {escape(finding.fix)}[/]")
        sys.exit(0 if all(finding.is_good for finding in findings) else 1)
