"""The operator's console: logs in with the demo's admin, and opens every page that it links to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.e2e.accounts import metered, quiet
from tests.e2e.api import bare_id
from tests.e2e.conftest import Platform

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
OPERATOR_PAGES = ("requests/", "usage/", "engines/")
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
LINK = re.compile(r'href="(/admin/[a-z_]+/[a-z_]+/(?:add/)?)"')


@pytest.fixture(scope="module")
def request_id(platform: Platform) -> str:
    """A request to look at, metered: its row is in ClickHouse."""
    before = quiet(platform.api, since=platform.started_at)
    answer = platform.api.post("/completions", {"model": platform.model, "prompt": "say: look", "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    found = bare_id(answer.json()["id"])
    metered(platform.api, since=platform.started_at, before=before, requests=1)
    return found


@pytest.fixture(scope="module")
def browser(platform: Platform) -> Iterator[httpx.Client]:
    """Cookies of the demo's admin, logged in through the form."""
    with httpx.Client(follow_redirects=True, timeout=30, base_url=platform.api.root) as client:
        page = client.get("/admin/login/?next=/admin/")
        assert page.status_code == 200
        token = TOKEN.search(page.text)
        assert token
        answer = client.post(
            "/admin/login/?next=/admin/",
            data={
                "csrfmiddlewaretoken": token[1],
                "username": platform.demo["admin_user"],
                "password": platform.demo["admin_password"],
                "next": "/admin/",
            },
            headers={"Referer": f"{platform.api.root}/admin/login/"},
        )
        assert answer.status_code == 200
        assert answer.url.path == "/admin/", "the login was not taken"
        yield client


def assert_is_a_page(response: httpx.Response) -> None:
    assert response.status_code == 200, f"{response.request.url}: {response.status_code} {response.text[:1_000]}"
    assert "/login/" not in str(response.url)
    assert response.headers["content-type"].startswith("text/html")
    assert "Traceback" not in response.text
    assert "<html" in response.text


class TestConsole:
    def test_keeps_strangers_out(self, platform: Platform) -> None:
        with httpx.Client(follow_redirects=False, timeout=30, base_url=platform.api.root) as stranger:
            for page in ("", *OPERATOR_PAGES, "tenants/apikey/"):
                answer = stranger.get(f"/admin/{page}")
                assert answer.status_code == 302
                assert "/admin/login/" in answer.headers["location"]

    def test_opens_every_page_that_its_index_links_to(self, browser: httpx.Client) -> None:
        index = browser.get("/admin/")
        assert_is_a_page(index)
        links = sorted(set(LINK.findall(index.text)))
        assert len([link for link in links if not link.endswith("add/")]) >= 10
        for link in links:
            assert_is_a_page(browser.get(link))

    def test_opens_the_first_row_of_every_list(self, browser: httpx.Client) -> None:
        index = browser.get("/admin/").text
        lists = sorted({link for link in LINK.findall(index) if not link.endswith("add/")})
        opened = 0
        for link in lists:
            rows = re.findall(rf'href="({re.escape(link)}[^"/]+/change/)', browser.get(link).text)
            for row in rows[:1]:
                assert_is_a_page(browser.get(row))
                opened += 1
        assert opened >= 5

    def test_searches_every_list_without_a_failure(self, browser: httpx.Client) -> None:
        for link in sorted({link for link in LINK.findall(browser.get("/admin/").text) if not link.endswith("add/")}):
            assert_is_a_page(browser.get(link, params={"q": "' or 1=1 --"}))

    @pytest.mark.parametrize("page", OPERATOR_PAGES)
    def test_shows_the_operators_pages(self, browser: httpx.Client, request_id: str, page: str) -> None:
        assert_is_a_page(browser.get(f"/admin/{page}"))

    def test_shows_one_request_over_its_nine_steps(self, browser: httpx.Client, request_id: str) -> None:
        page = browser.get(f"/admin/requests/{request_id}/")
        assert_is_a_page(page)
        for step in ("EDGE", "AUTH", "LIMITS", "GUARDRAIL", "QUEUE", "WORKER", "STREAM", "METER", "BILL"):
            assert step in page.text.upper()

    def test_lists_the_request_among_the_recent_ones(self, browser: httpx.Client, request_id: str) -> None:
        assert request_id in browser.get("/admin/requests/").text

    def test_never_shows_a_key_again(self, browser: httpx.Client, platform: Platform) -> None:
        keys = browser.get("/admin/tenants/apikey/").text
        assert str(platform.demo["api_key"]) not in keys
        assert str(platform.demo["other_api_key"]) not in keys


if CHROMIUM and DRIVER:  # Debian's packages chromium and chromium-driver; elsewhere this class is not collected

    class TestBrowser:
        def test_draws_the_console_without_an_error_in_its_log(
            self, platform: Platform, browser: httpx.Client, request_id: str, tmp_path: Path
        ) -> None:
            from selenium import webdriver

            options = webdriver.ChromeOptions()
            options.binary_location = str(CHROMIUM)
            for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1440,1000"):
                options.add_argument(argument)
            options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
            driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
            try:
                driver.get(urljoin(platform.api.root, "/admin/login/"))
                for cookie in browser.cookies.jar:
                    driver.add_cookie({"name": cookie.name, "value": cookie.value or "", "path": "/"})
                for number, page in enumerate(("", *OPERATOR_PAGES, f"requests/{request_id}/")):
                    driver.get(urljoin(platform.api.root, f"/admin/{page}"))
                    shot = tmp_path / f"{number}.png"
                    assert driver.save_screenshot(str(shot))
                    assert shot.stat().st_size > 10_000
                severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
                assert [message for message in severe if "/favicon.ico" not in message] == []
            finally:
                driver.quit()
