"""`manage.py limits_doc`: writes docs/limits.md from the limits that the edge checks."""

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.env import ROOT
from gateway.surface.limits import render_limits
from tenants.limits.stated import render_tenant_limits

LIMITS = ROOT / "docs" / "limits.md"


class Command(BaseCommand):
    help = "Write docs/limits.md from the stated limits."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        LIMITS.write_text(render_limits() + render_tenant_limits(), encoding="utf-8")
        self.stdout.write(f"wrote {LIMITS.relative_to(ROOT)}")
