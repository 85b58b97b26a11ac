"""Django app of this room."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
