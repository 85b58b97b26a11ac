"""Every change to a tenant, project, member, key or limit. Called by the admin, the management API and the seed.

Invariants: a change and its event commit together; a change that a cached context must not outlive raises an epoch in
the same transaction and pushes it on commit; the plain text of a key is returned once and kept nowhere.
Every function raises django.core.exceptions.ValidationError for input it refuses.
"""

from tenants.services.background import (
    NewBackground,
    accept_background,
    drop_unqueued_background,
    end_background,
    forget_background,
    mark_background_queued,
)
from tenants.services.keys import (
    change_key,
    create_key,
    expire_keys,
    load_keys,
    pepper,
    record_last_used,
    revoke_key,
    rotate_key,
)
from tenants.services.limits import check_cap, set_limits
from tenants.services.members import add_member, change_member, remove_member
from tenants.services.plans import change_plan, create_plan
from tenants.services.prepaid import keep_prepaid
from tenants.services.projects import create_project, delete_project, rename_project
from tenants.services.pushing import push_now, raise_epochs_under_policy
from tenants.services.tenants import (
    change_tenant,
    check_timezone,
    close_tenant,
    create_tenant,
    resume_tenant,
    suspend_tenant,
)

__all__ = [
    "NewBackground",
    "accept_background",
    "add_member",
    "change_key",
    "change_member",
    "change_plan",
    "change_tenant",
    "check_cap",
    "check_timezone",
    "close_tenant",
    "create_key",
    "create_plan",
    "create_project",
    "create_tenant",
    "delete_project",
    "drop_unqueued_background",
    "end_background",
    "expire_keys",
    "forget_background",
    "keep_prepaid",
    "load_keys",
    "mark_background_queued",
    "pepper",
    "push_now",
    "raise_epochs_under_policy",
    "record_last_used",
    "remove_member",
    "rename_project",
    "resume_tenant",
    "revoke_key",
    "rotate_key",
    "set_limits",
    "suspend_tenant",
]
