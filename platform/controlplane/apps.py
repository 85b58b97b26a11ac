"""The control plane's own Django app: the catalogue of served models and the operator's pages."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ControlPlaneConfig(AppConfig):
    name = "controlplane"
    verbose_name = "Platform"

    def ready(self) -> None:
        """Register the system checks (`manage.py check`), what follows a sign-in or a save, operators' roles, names."""
        from controlplane import announcements, checks, names, prepaid, roles  # noqa: F401
        from controlplane.signin import checks as signin_checks  # noqa: F401
        from controlplane.signin import events  # noqa: F401

        names.name_models()
        post_migrate.connect(roles.follow_migration)
