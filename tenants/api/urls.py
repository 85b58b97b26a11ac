"""Routes under /api/v1/. No trailing slash, never a redirect."""

from rest_framework.routers import SimpleRouter

from tenants.api.audit import AuditRoute
from tenants.api.keys import KeyRoute
from tenants.api.limits import BudgetRoute, LimitRoute
from tenants.api.members import MemberRoute
from tenants.api.plans import PlanRoute
from tenants.api.projects import ProjectRoute
from tenants.api.tenants import TenantRoute

_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
_router.register("tenants", TenantRoute, basename="tenant")
_router.register("plans", PlanRoute, basename="plan")
_router.register("projects", ProjectRoute, basename="project")
_router.register("keys", KeyRoute, basename="key")
_router.register("members", MemberRoute, basename="member")
_router.register("limits", LimitRoute, basename="limit")
_router.register("budgets", BudgetRoute, basename="budget")
_router.register("audit", AuditRoute, basename="audit")

urlpatterns = _router.urls
