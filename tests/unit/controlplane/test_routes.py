"""Django's routes are imported when the gateway starts: what is broken in them stops the start, not a request."""

import subprocess
import sys
from types import ModuleType

import pytest
from django.core.exceptions import ViewDoesNotExist
from django.test import override_settings
from django.urls import path

from controlplane.front import load_routes

STARTS = "import controlplane.asgi, sys; sys.exit(0 if 'controlplane.urls' in sys.modules else 3)"


@pytest.fixture
def urlconf(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("routes_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


class TestRoutes:
    def test_are_loaded_by_the_import_of_the_application(self) -> None:
        done = subprocess.run([sys.executable, "-c", STARTS], check=False, timeout=60, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_whose_module_is_broken_stop_the_start(self) -> None:
        with override_settings(ROOT_URLCONF="no_such_module_of_routes"), pytest.raises(ModuleNotFoundError):
            load_routes()

    def test_whose_error_page_is_missing_stop_the_start(self, urlconf: ModuleType) -> None:
        urlconf.urlpatterns = [path("", lambda request: None)]  # type: ignore[attr-defined]
        urlconf.handler500 = "controlplane.views.no_such_page"  # type: ignore[attr-defined]
        with override_settings(ROOT_URLCONF=urlconf.__name__), pytest.raises(ViewDoesNotExist, match="no_such_page"):
            load_routes()
