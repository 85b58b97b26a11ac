"""`manage.py doctor`: tests each configured store and the engine for real, and says how to fix what is wrong."""

import asyncio
import sys
from typing import Any

from django.core.management.base import BaseCommand
from rich.markup import escape

from controlplane.local.doctor import examine_here
from controlplane.local.output import open_console


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        console = open_console()
        findings = asyncio.run(examine_here())
        for finding in findings:
            mark = "[green]✓[/]" if finding.is_good else "[red]✗[/]"
            console.print(f"{mark} {finding.name:<11} {escape(finding.detail)}")
            if finding.fix:
                console.print(f"              [yellow]→ {escape(finding.fix)}[/]")
        sys.exit(0 if all(finding.is_good for finding in findings) else 1)
