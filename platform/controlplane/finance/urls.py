"""Routes under /api/v1/. No trailing slash, never a redirect."""

from django.urls import path
from rest_framework.routers import SimpleRouter

from controlplane.finance.invoices import InvoiceRoute
from controlplane.finance.reports import FinanceRoute

_router = SimpleRouter(trailing_slash=False, use_regex_path=False)
_router.register("invoices", InvoiceRoute, basename="invoice")

urlpatterns = [
    *_router.urls,
    path("finance/usage", FinanceRoute.as_view({"get": "usage"}), name="finance_usage"),
    path("finance/wasted", FinanceRoute.as_view({"get": "wasted"}), name="finance_wasted"),
    path("finance/movers", FinanceRoute.as_view({"get": "moved"}), name="finance_movers"),
    path("finance/receivables", FinanceRoute.as_view({"get": "owed"}), name="finance_receivables"),
]
