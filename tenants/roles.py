"""Who in a tenant may do what. Pure; asked by the management API, stated in its documentation.

A management key acts as an admin of its tenant. Operators are no members: their Django permissions decide.
Invariant: what no role is named for here, no member may do.
"""

from enum import StrEnum

from tenants.models import Role


class Action(StrEnum):
    """What a route does, as far as roles tell it apart."""

    READ = "read"
    READ_AUDIT = "read_audit"
    MANAGE_TENANT = "manage_tenant"
    MANAGE_PROJECTS = "manage_projects"
    MANAGE_KEYS = "manage_keys"
    MANAGE_LIMITS = "manage_limits"
    MANAGE_MEMBERS = "manage_members"
    MANAGE_WEBHOOKS = "manage_webhooks"
    READ_POLICIES = "read_policies"  # guardrails in full, and what they make of a text
    OPERATE = "operate"  # nobody's within a tenant: its contract, its state


_EVERYBODY = frozenset(Role)
_LEAD = frozenset({Role.OWNER, Role.ADMIN})
MAY: dict[Action, frozenset[Role]] = {
    Action.READ: _EVERYBODY,
    Action.READ_AUDIT: _LEAD,
    Action.MANAGE_TENANT: _LEAD,
    Action.MANAGE_PROJECTS: _LEAD | {Role.DEVELOPER},
    Action.MANAGE_KEYS: _LEAD | {Role.DEVELOPER},
    Action.MANAGE_LIMITS: _LEAD | {Role.BILLING},
    Action.MANAGE_MEMBERS: _LEAD,
    Action.MANAGE_WEBHOOKS: _LEAD | {Role.DEVELOPER},
    Action.READ_POLICIES: _LEAD,
    Action.OPERATE: frozenset(),
}


def may(role: Role, action: Action) -> bool:
    """Whether a member with this role may do it."""
    return role in MAY[action]


def may_give(giver: Role, role: Role) -> bool:
    """Whether a member may make somebody this, or take it away: only an owner makes and unmakes owners."""
    return may(giver, Action.MANAGE_MEMBERS) and (role is not Role.OWNER or giver is Role.OWNER)
