"""Django app of this room."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"
