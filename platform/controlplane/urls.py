"""URLs outside the inference routes: the admin console and the management API."""

from django.contrib import admin
from django.urls import include, path

from controlplane import views
from controlplane.capacity.api import CapacityRoute
from controlplane.documents import DocsView, SchemaView
from controlplane.navigation import APPS_WITH_LISTS
from controlplane.pages import dead_letters, engines, limits, refusals

urlpatterns = [
    path("", views.home, name="home"),
    path("favicon.ico", views.favicon, name="favicon"),
    path("admin", views.home, name="console"),
    path("admin/requests/", admin.site.admin_view(views.recent_requests), name="recent_requests"),
    path("admin/requests/<uuid:request_id>/", admin.site.admin_view(views.request_timeline), name="request_timeline"),
    path("admin/usage/", admin.site.admin_view(views.usage), name="usage"),
    path("admin/engines/", admin.site.admin_view(engines.engines), name="engines"),
    path("admin/limits/", admin.site.admin_view(limits.tenants), name="limits"),
    path("admin/limits/tenant/<uuid:tenant_id>/", admin.site.admin_view(limits.tenant_limits), name="tenant_limits"),
    path("admin/limits/key/<uuid:key_id>/", admin.site.admin_view(limits.key_limits), name="key_limits"),
    path("admin/refusals/", admin.site.admin_view(refusals.refusals), name="refusals"),
    path("admin/dead-letters/", admin.site.admin_view(dead_letters.dead_letters), name="dead_letters"),
    path(
        "admin/dead-letters/<str:pool>/<str:entry_id>/",
        admin.site.admin_view(dead_letters.dead_letter),
        name="dead_letter",
    ),
    *(
        path(f"admin/{app}/", admin.site.admin_view(views.home)) for app in APPS_WITH_LISTS
    ),  # the home page has them all
    path("admin/", include("controlplane.signin.urls")),
    path("admin/", admin.site.urls),
    path("api/v1/", include("tenants.api.urls")),
    path("api/v1/", include("tenants.webhooks.urls")),
    path("api/v1/", include("controlplane.finance.urls")),
    path("api/v1/", include("controlplane.policies.urls")),
    path("api/v1/capacity", CapacityRoute.as_view({"post": "create"}), name="capacity"),
    path("api/schema", SchemaView.as_view(), name="schema"),
    path("api/docs/", DocsView.as_view(url_name="schema"), name="api_docs"),
    path(
        "api/docs/inference/",
        DocsView.as_view(url="/v1/openapi.json", title="Weir inference API"),
        name="inference_docs",
    ),
]

handler400 = "controlplane.views.bad_request"
handler403 = "controlplane.views.forbidden"
handler404 = "controlplane.views.not_found"
handler500 = "controlplane.views.server_error"
