"""Ask before doing: a page with a form, and by POST the deed. Shared by the pages of this room."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin


def asked(
    page: ModelAdmin,
    request: HttpRequest,
    object_id: str,
    *,
    title: str,
    form: type[forms.Form],
    run: Callable[[Any, dict[str, Any]], str],
    errors: tuple[type[Exception], ...],
) -> HttpResponse:
    """Show `form`; by POST, run what was asked for and go back to the object. `errors` are told, not raised.

    For those who may add or change such objects; others go back to the list.
    """
    name = f"admin:{page.opts.app_label}_{page.opts.model_name}"
    found = page.get_object(request, object_id)
    allowed = any(
        request.user.has_perm(f"{page.opts.app_label}.{verb}_{page.opts.model_name}") for verb in ("add", "change")
    )
    if found is None or not allowed:
        return redirect(reverse(f"{name}_changelist"))
    filled = form(request.POST if request.method == "POST" else None)
    if filled.is_valid():
        try:
            messages.success(request, run(found, filled.cleaned_data))
        except errors as error:
            messages.error(request, str(error))
        return redirect(reverse(f"{name}_change", args=[object_id]))
    context = {
        **page.admin_site.each_context(request),
        "title": f"{title} {found}",
        "form": filled,
        "opts": page.opts,
    }
    return TemplateResponse(request, "billing/asked.html", context)
