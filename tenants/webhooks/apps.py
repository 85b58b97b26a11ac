"""Django app of this room; its tables are named `webhooks_…`."""

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "tenants.webhooks"
    label = "webhooks"
