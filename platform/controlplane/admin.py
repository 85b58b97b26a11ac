"""Admin of the catalogue, of the console's users, and of who tried to sign in."""

from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from axes.models import AccessAttempt, AccessLog
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Count, QuerySet
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
    empty_hint = (
        "`manage.py createsuperuser` makes the first; who is staff may sign in here, and opens what the roles allow."
    )

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Groups are called roles here."""
        if db_field.name == "groups":
            kwargs["help_text"] = "What this person may open and change; «operator», «support» and «finance» are ready."
        return super().formfield_for_manytomany(db_field, request, **kwargs)


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):  # type: ignore[misc]
    """Roles. Those of `roles.ROLES` are brought back to their list at every migration."""

    list_display = ("name", "people")
    empty_hint = "The roles operator, support and finance are made by `manage.py migrate`."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        found: QuerySet[Group] = super().get_queryset(request)
        return found.annotate(people_now=Count("user"))

    @admin.display(description="people", ordering="people_now")
    def people(self, group: Any) -> int:
        return int(group.people_now)


@admin.register(ServedModel)
class ServedModelAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("name", "pool", "enabled", "created_at")
    list_filter = ("enabled",)
    search_fields = ("name", "pool")
    empty_hint = "A model is offered once it is named here with its pool and its tokenizer; `make up` adds the demo's."


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

    list_display = ("username", "failures", "attempt_time", "ip_address", "user_agent")
    list_display_links = None  # there is no more to see
    fields = readonly_fields = list_display
    search_fields = ("username", "ip_address")
    empty_hint = (
        "Wrong passwords and codes stand here until a right one follows. Five lock the account for a quarter of an "
        "hour; `manage.py operator NAME --unlock` unlocks it at once."
    )

    @admin.display(description="wrong answers", ordering="failures_since_start")
    def failures(self, attempt: AccessAttempt) -> str:
        locked = attempt.failures_since_start >= settings.AXES_FAILURE_LIMIT
        return f"{attempt.failures_since_start}{': locked' if locked else ''}"


@admin.register(AccessLog)
class AccessLogAdmin(ReadOnlyAdmin):
    list_display = ("username", "attempt_time", "left", "ip_address", "user_agent")
    list_display_links = None  # there is no more to see
    fields = readonly_fields = list_display
    search_fields = ("username", "ip_address")
    empty_hint = "Each sign-in to this console is written here, and in the audit trail for good."

    @admin.display(description="signed out", ordering="logout_time", empty_value="not signed out")
    def left(self, entry: AccessLog) -> Any:
        return entry.logout_time
