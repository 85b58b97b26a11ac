"""Sign-in below /admin/: only the pages of django-allauth that an operator needs."""

from allauth.account.views import logout, reauthenticate
from django.urls import include, path

from controlplane.signin.views import SignIn

urlpatterns = [
    path("login/", SignIn.as_view(), name="account_login"),
    path("security/sign-out/", logout, name="account_logout"),
    path("security/confirm/", reauthenticate, name="account_reauthenticate"),
    path("security/", include("allauth.mfa.urls")),
]
