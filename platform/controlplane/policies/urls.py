"""Routes under /api/v1/. No trailing slash, never a redirect."""

from rest_framework.routers import SimpleRouter

from controlplane.policies.api import PolicyRoute

_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
_router.register("policies", PolicyRoute, basename="policy")

urlpatterns = _router.urls
