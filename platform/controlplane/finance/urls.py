"""Routes under /api/v1/. No trailing slash, never a redirect."""

from rest_framework.routers import SimpleRouter

from controlplane.finance.invoices import InvoiceRoute

_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
_router.register("invoices", InvoiceRoute, basename="invoice")

urlpatterns = _router.urls
