"""Projects of a tenant."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone as clock

from tenants.actors import SYSTEM, Actor
from tenants.events import record
from tenants.models import Project, Tenant
from tenants.services.facts import apply, must_be_open, subject
from tenants.services.keys import revoke_key

PROJECTS_MAX = 1_000


@transaction.atomic
def create_project(*, tenant: Tenant, name: str, actor: Actor = SYSTEM) -> Project:
    """A project of a tenant."""
    must_be_open(tenant)
    if Project.objects.filter(tenant=tenant, deleted_at=None).count() >= PROJECTS_MAX:
        raise ValidationError(f"A tenant has at most {PROJECTS_MAX} projects.")
    project = Project(tenant=tenant, name=name)
    project.full_clean()
    project.save()
    record("project.created", tenant_id=tenant.id, subject=subject(project), actor=actor, after={"name": name})
    return project


@transaction.atomic
def rename_project(*, project: Project, name: str, actor: Actor = SYSTEM) -> Project:
    """Give a project another name."""
    locked = Project.objects.select_for_update().get(id=project.id)
    before = apply(locked, {"name": name}, frozenset({"name"}))
    record(
        "project.renamed",
        tenant_id=locked.tenant_id,
        subject=subject(locked),
        actor=actor,
        before=before,
        after={"name": name},
    )
    return locked


@transaction.atomic
def delete_project(*, project: Project, actor: Actor = SYSTEM) -> Project:
    """Revoke the keys of a project and take it off the lists; its name stays in old reports."""
    locked = Project.objects.select_for_update().get(id=project.id)
    if locked.deleted_at is not None:
        return locked
    for key in locked.api_keys.filter(revoked_at=None):
        revoke_key(key=key, reason="project deleted", actor=actor)
    locked.deleted_at = clock.now()
    locked.save(update_fields=["deleted_at", "updated_at"])
    before = {"name": locked.name}
    record("project.deleted", tenant_id=locked.tenant_id, subject=subject(locked), actor=actor, before=before)
    return locked
