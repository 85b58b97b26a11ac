"""`manage.py create_key`: a key from the command line."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from tenants.auth.keys import looks_valid
from tenants.models import ApiKey, Plan, Tenant

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    said = StringIO()
    call_command("create_key", *arguments, stdout=said)
    return said.getvalue().strip()


class TestCreateKey:
    def test_makes_a_tenant_with_its_project_and_prints_the_key_alone(self) -> None:
        Plan.objects.create(name="Small")
        key = run("--tenant", "Acme", "--plan", "Small")
        assert looks_valid(key)
        made = ApiKey.objects.get(last4=key[-4:])
        assert (made.tenant.name, made.project.name, made.tenant.plan.name) == ("Acme", "Default", "Small")

    def test_uses_the_tenant_that_is_there(self) -> None:
        Plan.objects.create(name="Small")
        keys = {run("--tenant", "Acme", "--plan", "Small"), run("--tenant", "Acme")}
        assert len(keys) == 2
        assert Tenant.objects.filter(name="Acme").count() == 1

    def test_names_what_is_missing(self) -> None:
        with pytest.raises(CommandError, match="no tenant is called 'Nobody'"):
            run("--tenant", "Nobody")
        with pytest.raises(CommandError, match="no plan is called 'Large'"):
            run("--tenant", "Nobody", "--plan", "Large")

    def test_takes_no_plan_that_is_not_there_for_a_tenant_that_is(self) -> None:
        Plan.objects.create(name="Small")
        run("--tenant", "Acme", "--plan", "Small")
        with pytest.raises(CommandError, match="no plan is called 'Large'"):
            run("--tenant", "Acme", "--plan", "Large")
