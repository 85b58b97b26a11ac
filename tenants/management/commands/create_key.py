"""`manage.py create_key --tenant NAME [--plan NAME]`: an API key from the command line, its text alone on stdout.

For the first key of an installation, for scripts and for benches; what it does is in the audit trail like any other
change. A tenant that does not exist is made when a plan is named for it.
"""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from tenants.models import Plan, Project, Tenant, TenantState
from tenants.services import create_key, create_project, create_tenant


class Command(BaseCommand):
    """One key for one tenant."""

    help = "Create an API key and print its text, once. --plan makes the tenant when there is none of that name."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", required=True, help="the tenant's name")
        parser.add_argument("--plan", help="make the tenant with this plan when it does not exist")
        parser.add_argument("--project", default="Default", help="its project, made when it does not exist")
        parser.add_argument("--name", default="Command line", help="the key's name in lists")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with transaction.atomic():
                tenant = _tenant(options["tenant"], options["plan"])
                project = Project.objects.filter(tenant=tenant, name=options["project"], deleted_at=None).first()
                project = project or create_project(tenant=tenant, name=options["project"])
                _, text = create_key(project=project, name=options["name"])
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        self.stdout.write(text)


def _tenant(name: str, plan_name: str | None) -> Tenant:
    tenant = Tenant.objects.exclude(state=TenantState.CLOSED).filter(name=name).first()
    plan = None if plan_name is None else _plan(plan_name)
    if tenant is not None:
        return tenant
    if plan is None:
        raise CommandError(f"no tenant is called {name!r}; name a --plan to make it")
    return create_tenant(name=name, plan=plan)


def _plan(name: str) -> Plan:
    plan = Plan.objects.filter(name=name).first()
    if plan is None:
        plans = ", ".join(Plan.objects.values_list("name", flat=True)) or "none"
        raise CommandError(f"no plan is called {name!r}; there is: {plans}")
    return plan
