"""What the console calls things: one name for each model, said on the side bar, over its pages and on its buttons.

Called by `apps.py` once every model is there. Only models whose own names say something else stand here: those of
other packages, and those that would read the same as another room's. Migrations read a model's declared options, so
nothing of this is a change of the schema.
"""

from collections.abc import Mapping

from django.apps import apps

# model -> (one, many)
NAMES: Mapping[str, tuple[str, str]] = {
    "auth.group": ("role", "roles"),
    "axes.accesslog": ("sign-in", "sign-ins"),
    "axes.accessattempt": ("wrong sign-in", "wrong sign-ins"),
    "safety.policy": ("guardrail policy", "guardrail policies"),
    "safety.policyversion": ("published policy", "published policies"),
    "webhooks.delivery": ("webhook delivery", "webhook deliveries"),
    "billing.billingprofile": ("billing address", "billing addresses"),
    "billing.dunningstep": ("reminder", "reminders"),
}


def name_models() -> None:
    """Give each model above its names. A user's groups are roles too."""
    from django.contrib.auth.models import User  # no model before the registry is whole

    for label, (one, many) in NAMES.items():
        options = apps.get_model(label)._meta  # noqa: SLF001 - Django's own API
        options.verbose_name, options.verbose_name_plural = one, many
    User.groups.field.verbose_name = "roles"
