"""Admin of the catalogue, of the console's users, and of who tried to sign in."""

from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from axes.models import AccessAttempt, AccessLog
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from controlplane.engineconfig.admin import EngineConfigAdmin
from controlplane.models import ServedModel

__all__ = ["EngineConfigAdmin"]  # registered by being imported

for replaced in (User, Group, EmailAddress, Authenticator):  # allauth's own pages show what it keeps, secrets too
    if admin.site.is_registered(replaced):
        admin.site.unregister(replaced)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[misc,type-arg]  # unfold has no types
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):  # type: ignore[misc]
    pass


@admin.register(ServedModel)
class ServedModelAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("name", "pool", "enabled", "created_at")
    list_filter = ("enabled",)
    search_fields = ("name", "pool")


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]
    """A log: nobody adds to it, changes it or deletes from it here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(AccessAttempt)
class AccessAttemptAdmin(ReadOnlyAdmin):
    """Accounts with wrong answers that still count; `manage.py operator NAME --unlock` forgets them."""

    list_display = ("username", "failures_since_start", "attempt_time", "ip_address")
    fields = readonly_fields = ("username", "failures_since_start", "attempt_time", "ip_address", "user_agent")
    search_fields = ("username", "ip_address")


@admin.register(AccessLog)
class AccessLogAdmin(ReadOnlyAdmin):
    list_display = ("username", "attempt_time", "logout_time", "ip_address")
    fields = readonly_fields = ("username", "attempt_time", "logout_time", "ip_address", "user_agent")
    search_fields = ("username", "ip_address")
