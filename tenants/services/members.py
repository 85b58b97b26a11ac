"""People and their roles in a tenant.

Invariant: once a tenant has an owner, it keeps one: two owners who leave at the same moment wait for each other.
"""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone as clock

from contracts.errors import PermissionDenied
from tenants.actors import SYSTEM, Actor
from tenants.events import record
from tenants.models import Member, Role, Tenant
from tenants.roles import may_give
from tenants.services.facts import must_be_open, subject

MEMBERS_MAX = 1_000


@transaction.atomic
def add_member(
    *,
    tenant: Tenant,
    user: AbstractBaseUser,
    role: str = Role.DEVELOPER,
    actor: Actor = SYSTEM,
    by: Role | None = None,
) -> Member:
    """Give a person a role in a tenant. `by`: the role of a member who does it; None = an operator or the system.

    Raises ValidationError, PermissionDenied.
    """
    must_be_open(tenant)
    _check_giver(by, role)
    if Member.objects.filter(tenant=tenant, deleted_at=None).count() >= MEMBERS_MAX:
        raise ValidationError(f"A tenant has at most {MEMBERS_MAX} members.")
    if Member.objects.filter(tenant=tenant, user_id=user.pk, deleted_at=None).exists():
        raise ValidationError({"user": ValidationError("This person is a member.", code="member_unique")})
    member = Member(tenant=tenant, user_id=user.pk, role=role)
    member.full_clean()
    member.save()
    after = {"user": user.get_username(), "role": str(role)}
    record("member.added", tenant_id=tenant.id, subject=subject(member), actor=actor, after=after)
    return member


@transaction.atomic
def change_member(*, member: Member, role: str, actor: Actor = SYSTEM, by: Role | None = None) -> Member:
    """Give a member another role. Raises ValidationError for the last owner, PermissionDenied."""
    locked = _lock(member)
    if locked.deleted_at is not None:
        raise ValidationError("This person is no member any more.")
    _check_giver(by, locked.role, role)
    if locked.role == role:
        return locked
    if locked.role == Role.OWNER:
        _must_not_be_last(locked)
    before = {"role": str(locked.role)}
    locked.role = role
    locked.full_clean()
    locked.save(update_fields=["role", "updated_at"])
    record(
        "member.changed",
        tenant_id=locked.tenant_id,
        subject=subject(locked),
        actor=actor,
        before=before,
        after={"role": str(role)},
    )
    return locked


@transaction.atomic
def remove_member(*, member: Member, actor: Actor = SYSTEM, by: Role | None = None, leaves: bool = False) -> None:
    """Take a person's role away. `leaves`: the person does it alone, which needs no role.

    Raises ValidationError for the last owner, PermissionDenied. Repeated it does nothing.
    """
    locked = _lock(member)
    if locked.deleted_at is not None:
        return
    if not leaves:
        _check_giver(by, locked.role)
    if locked.role == Role.OWNER:
        _must_not_be_last(locked)
    locked.deleted_at = clock.now()
    locked.save(update_fields=["deleted_at", "updated_at"])
    before = {"user": _name_of(locked), "role": str(locked.role)}
    record("member.removed", tenant_id=locked.tenant_id, subject=subject(locked), actor=actor, before=before)


def _lock(member: Member) -> Member:
    """The member, under the lock of its tenant: who counts owners sees what the other decided."""
    Tenant.objects.select_for_update().get(id=member.tenant_id)
    return Member.objects.select_for_update().get(id=member.id)


def _name_of(member: Member) -> str:
    """The person's user name. Of the other columns a tenant may not read all."""
    people = get_user_model().objects.filter(pk=member.user_id)
    return str(people.values_list("username", flat=True).get())


def _must_not_be_last(member: Member) -> None:
    others = Member.objects.filter(tenant_id=member.tenant_id, role=Role.OWNER, deleted_at=None).exclude(id=member.id)
    if not others.exists():
        raise ValidationError("The last owner stays: make somebody else an owner first.")


def _check_giver(by: Role | None, *roles: str) -> None:
    for role in roles:
        if role not in Role.values:
            raise ValidationError({"role": f"One of: {', '.join(Role.values)}."})
        if by is not None and not may_give(by, Role(role)):
            raise PermissionDenied(f"Your role does not give or take the role `{role}`.", param="role")
