"""Routes under /api/v1/. No trailing slash, never a redirect."""

from rest_framework.routers import SimpleRouter

from tenants.api import views

_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
_router.register("tenants", views.TenantRoute, basename="tenant")
_router.register("projects", views.ProjectRoute, basename="project")
_router.register("keys", views.KeyRoute, basename="key")
_router.register("limits", views.LimitRoute, basename="limit")
_router.register("audit", views.AuditRoute, basename="audit")

urlpatterns = _router.urls
