"""curl as a client, for tests."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.e2e.conftest import Platform

CURL_SECONDS = "60"
# A machine without curl still runs every other client; these are then skipped, and the README says so.
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(platform: Platform, path: str, *options: str, body: dict[str, object] | None = None) -> str:
    """What curl printed: as the first demo tenant, a POST where there is a body. Fails when curl does."""
    command = ["curl", "--silent", "--show-error", "--max-time", CURL_SECONDS, *options, platform.base_url + path]
    command += ["-H", f"Authorization: Bearer {platform.demo['api_key']}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
