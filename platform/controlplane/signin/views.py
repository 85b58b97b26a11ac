"""The sign-in page at /admin/login/, and what a locked account sees there."""

from typing import Any

from allauth.account.views import LoginView
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from controlplane.signin.forms import SignInForm


class SignIn(LoginView):  # type: ignore[misc]  # allauth has no types
    """django-allauth's sign-in (its later steps are stages) with Django's field names, which scripts know."""

    form_class = SignInForm
    template_name = "signin/sign_in.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """A person without access to the console is told so; sent on, she would come back here for ever."""
        if request.user.is_authenticated and not getattr(request.user, "is_staff", False):
            raise PermissionDenied
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response

    def get_form_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = super().get_form_kwargs()
        if "data" in kwargs:
            data = kwargs["data"].copy()
            data["login"] = data.get("username", "")
            kwargs["data"] = data
        return kwargs


def locked_out(
    request: HttpRequest, original_response: HttpResponse | None = None, credentials: dict[str, Any] | None = None
) -> HttpResponse:
    """429 with the time to wait; called by django-axes."""
    wait = settings.AXES_COOLOFF_TIME
    context = {"title": "Account locked", "minutes": int(wait.total_seconds() // 60)}
    response = render(request, "signin/locked.html", context, status=429)
    response["Retry-After"] = str(int(wait.total_seconds()))
    return response
