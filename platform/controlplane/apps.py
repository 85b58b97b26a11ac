"""The control plane's own Django app: the catalogue of served models and the operator's pages."""

from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    name = "controlplane"
    verbose_name = "Platform"

    def ready(self) -> None:
        """Register the system checks (`manage.py check`)."""
        from controlplane import checks  # noqa: F401
