"""The operator's console for tenants, keys, plans, limits and the audit trail (django-unfold).

Invariant: nothing is saved here but by `tenants.services`, so every change has its event and its epoch. Lists take a
fixed number of queries whatever their length.
"""

from tenants.admin.audit import AuditEntryAdmin
from tenants.admin.base import SafeAdmin, actor_of, adopt
from tenants.admin.keys import ApiKeyAdmin
from tenants.admin.limits import LimitSettingAdmin
from tenants.admin.owners import PlanAdmin, TenantAdmin

__all__ = [
    "ApiKeyAdmin",
    "AuditEntryAdmin",
    "LimitSettingAdmin",
    "PlanAdmin",
    "SafeAdmin",
    "TenantAdmin",
    "actor_of",
    "adopt",
]
