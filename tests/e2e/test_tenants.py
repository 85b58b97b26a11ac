"""Two tenants on one platform: neither sees, stops, reads or pays for what is the other's."""

from __future__ import annotations

import pytest

from tests.e2e.accounts import metered, quiet, reported
from tests.e2e.api import assert_is_error, bare_id
from tests.e2e.conftest import Platform

CHAT = "/chat/completions"


@pytest.fixture(scope="module")
def request_id(platform: Platform) -> str:
    """A request of the first tenant that has ended."""
    document = {
        "model": platform.model,
        "messages": [{"role": "user", "content": "say: mine alone"}],
        "max_tokens": 8,
    }
    answer = platform.api.post(CHAT, document)
    assert answer.status_code == 200, answer.text
    found = bare_id(answer.json()["id"])
    platform.api.ended(found)
    return found


class TestAnotherTenantsRequest:
    @pytest.mark.parametrize(
        ("method", "action"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel")], ids=["show", "events", "cancel"]
    )
    def test_is_not_there(self, platform: Platform, request_id: str, method: str, action: str) -> None:
        theirs = platform.other_api.request(method, f"/requests/{request_id}{action}")
        error = assert_is_error(theirs, status=404)
        never = "01890a5d-ac96-774b-bcce-b302099a8057"
        unknown = assert_is_error(platform.other_api.request(method, f"/requests/{never}{action}"), status=404)
        assert error["code"] == unknown["code"]
        assert error["message"].replace(request_id, never) == unknown["message"]

    def test_is_there_for_its_own(self, platform: Platform, request_id: str) -> None:
        found = platform.api.get(f"/requests/{request_id}").json()
        assert (found["id"], found["status"], found["outcome"]) == (request_id, "ended", "ok")


class TestUsage:
    def test_of_one_tenant_does_not_count_the_other(self, platform: Platform, request_id: str) -> None:
        since = platform.started_at
        mine, theirs = quiet(platform.api, since=since), quiet(platform.other_api, since=since)
        assert platform.other_api.get(f"/requests/{request_id}").status_code == 404
        document = {"model": platform.model, "prompt": "say: theirs", "max_tokens": 4}
        answer = platform.other_api.post("/completions", document)
        assert answer.status_code == 200, answer.text
        assert metered(platform.other_api, since=since, before=theirs, requests=1).requests == 1
        assert reported(platform.api, since=since) == mine


class TestIdempotencyKey:
    def test_of_one_tenant_means_nothing_to_the_other(self, platform: Platform) -> None:
        document = {"model": platform.model, "prompt": "say: once", "max_tokens": 4}
        headers = {"Idempotency-Key": f"shared-{platform.started_at}"}
        first = platform.api.post("/completions", document, headers=headers)
        again = platform.api.post("/completions", document, headers=headers)
        other = platform.other_api.post("/completions", document, headers=headers)
        assert [answer.status_code for answer in (first, again, other)] == [200, 200, 200], again.text
        assert again.json()["id"] == first.json()["id"]
        assert again.json()["usage"] == first.json()["usage"]
        assert other.json()["id"] != first.json()["id"]

    def test_with_another_body_is_refused(self, platform: Platform) -> None:
        headers = {"Idempotency-Key": f"changed-{platform.started_at}"}
        document = {"model": platform.model, "prompt": "say: once", "max_tokens": 4}
        assert platform.api.post("/completions", document, headers=headers).status_code == 200
        changed = platform.api.post("/completions", {**document, "max_tokens": 5}, headers=headers)
        assert_is_error(changed, status=422)
