"""What the pages of this room share: who is at the screen, and a page that says what a service refuses."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from unfold.admin import ModelAdmin

from contracts.errors import Unavailable
from tenants.actors import Actor


def actor_of(request: HttpRequest) -> Actor:
    """The operator at the screen."""
    return Actor(name=f"user:{request.user.get_username()}", address=request.META.get("REMOTE_ADDR") or None)


def adopt(row: Model, saved: Model) -> None:
    """Make the admin's own instance the one that a service saved."""
    row.__dict__.update(saved.__dict__)


class SafeAdmin(ModelAdmin):  # type: ignore[misc] # unfold has no types
    """What a service refuses is said on the page."""

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[no-any-return]
        except (ValidationError, Unavailable) as error:
            said = error.messages if isinstance(error, ValidationError) else [error.message]
            self.message_user(request, " ".join(said), messages.ERROR)
            return redirect(request.get_full_path())
