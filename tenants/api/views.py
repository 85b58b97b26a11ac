"""The names under which rooms beside this one make their own routes of the management API."""

from tenants.api.routes import OF_TENANT, Route
from tenants.api.words import is_uuid

_Route = Route

__all__ = ["OF_TENANT", "Route", "_Route", "is_uuid"]
