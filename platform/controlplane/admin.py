"""Admin of the catalogue and of the console's users."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from controlplane.models import ServedModel

admin.site.unregister(User)
admin.site.unregister(Group)


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
