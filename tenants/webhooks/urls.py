"""Routes under /api/v1/. No trailing slash, never a redirect."""

from rest_framework.routers import SimpleRouter

from tenants.webhooks import api

_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
_router.register("webhooks/attempts", api.AttemptRoute, basename="webhook-attempt")
_router.register("webhooks/deliveries", api.DeliveryRoute, basename="webhook-delivery")
_router.register("webhooks", api.EndpointRoute, basename="webhook")

urlpatterns = _router.urls
