"""The operators' roles: three groups with explicit permissions, brought up to this list at every migration.

Called by Django after it has migrated an app (`apps.py`). Invariant: what is listed here is what these groups may do,
no more and no less; people with other needs get groups of their own. Users, groups and second factors stay with
superusers: who edits them can become anybody.
"""

from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig, apps
from django.db import DEFAULT_DB_ALIAS

ALL = "*"
LOOK = frozenset({"view"})
WORK = frozenset({"view", "add", "change", "delete"})

# role -> app -> model (or all of them) -> actions. The pages of the console are `ConsolePage`'s own permissions.
Grants = Mapping[str, Mapping[str, frozenset[str]]]
ROLES: Mapping[str, Grants] = {
    "operator": {
        "tenants": {ALL: WORK},
        "safety": {ALL: WORK},
        "billing": {ALL: WORK},
        "webhooks": {ALL: WORK},
        "controlplane": {
            "servedmodel": WORK,
            "engineconfig": frozenset({"view", "add"}),
            "engineconfigevent": LOOK,
            "requests": frozenset({"open"}),
            "usage": frozenset({"open"}),
            "engines": frozenset({"open"}),
            "limits": frozenset({"open"}),
            "refusals": frozenset({"open"}),
            "dead_letters": frozenset({"open", "replay"}),
        },
        "axes": {ALL: LOOK},
    },
    "support": {
        "tenants": {ALL: LOOK},
        "safety": {ALL: LOOK},
        "webhooks": {ALL: LOOK},
        "controlplane": {
            "servedmodel": LOOK,
            "engineconfig": LOOK,
            "engineconfigevent": LOOK,
            "requests": frozenset({"open"}),
            "usage": frozenset({"open"}),
            "engines": frozenset({"open"}),
            "limits": frozenset({"open"}),
            "refusals": frozenset({"open"}),
        },
    },
    "finance": {
        "tenants": {"tenant": LOOK, "plan": LOOK, "project": LOOK},
        "billing": {ALL: LOOK},
        "controlplane": {"requests": frozenset({"open"}), "usage": frozenset({"open"})},
    },
}


def follow_migration(sender: AppConfig, using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Gives each role its permissions in the app that was just migrated, and takes what is not listed."""
    known_apps = kwargs.get("apps", apps)  # `manage.py flush` names none
    try:
        group_model = known_apps.get_model("auth", "Group")
        permission_model = known_apps.get_model("auth", "Permission")
    except LookupError:  # migrated only in part: the tables come later, and this again
        return
    known = permission_model.objects.using(using).filter(content_type__app_label=sender.label)
    permissions = list(known.values_list("pk", "codename"))
    if not permissions:
        return
    for role, grants in ROLES.items():
        group, _ = group_model.objects.using(using).get_or_create(name=role)
        wanted = {key for key, codename in permissions if is_granted(grants.get(sender.label, {}), codename)}
        held = set(group.permissions.filter(content_type__app_label=sender.label).values_list("pk", flat=True))
        group.permissions.remove(*(held - wanted))
        group.permissions.add(*(wanted - held))


def is_granted(grants: Mapping[str, frozenset[str]], codename: str) -> bool:
    """Whether a permission such as `view_tenant` is among an app's grants."""
    action, _, model = codename.partition("_")
    return action in grants.get(model, grants.get(ALL, frozenset()))
