"""Routes of the audit trail: read only; the database itself refuses to change it."""

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins

from tenants.api import shapes
from tenants.api.lists import Filter, by_instant, by_text
from tenants.api.routes import OF_TENANT, Route
from tenants.api.words import read_text
from tenants.models import AuditEntry
from tenants.roles import Action


def _by_name(text: str, param: str) -> Q:
    name = read_text(text, param=param)
    return Q(name__startswith=name[:-1]) if name.endswith(".*") else Q(name=name)


@extend_schema_view(
    list=extend_schema(summary="Read the audit trail, newest first"), retrieve=extend_schema(summary="Read an entry")
)
class AuditRoute(mixins.ListModelMixin, Route[AuditEntry]):
    serializer_class = shapes.AuditOut
    queryset = AuditEntry.objects.all()
    needs = {"list": Action.READ_AUDIT, "retrieve": Action.READ_AUDIT}
    filters = {
        "tenant": OF_TENANT,
        "name": Filter(_by_name, {"type": "string", "maxLength": 200}, "An event's name, or a family such as `key.*`."),
        "actor": by_text("actor", "Who, as entries show it: `user:ada`, `key:…wxyz`."),
        "subject": by_text("subject", "About what, as entries show it: `apikey:<id>`."),
        "since": by_instant("happened_at__gte", "From this instant on."),
        "until": by_instant("happened_at__lt", "Before this instant."),
    }

    def get_queryset(self) -> QuerySet[AuditEntry]:
        return AuditEntry.objects.filter(self.mine())
