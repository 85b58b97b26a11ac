"""Every route of the inference API that names a request, with another tenant's request: read from the code itself."""

import ast
import inspect
import textwrap

import pytest

from contracts.outcomes import JobState
from gateway.edge.app import InferenceApp
from stores.system import mint_request_id
from tests.functional.gateway.conftest import Gateway
from tests.functional.gateway.test_lifecycle import running
from tests.functional.gateway.test_realtime import event, say, socket


def actions() -> list[str]:
    """What may follow a request's id in a path: the keys of the dictionary in `InferenceApp._routes`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(InferenceApp._routes)))
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)]
    found = [ast.literal_eval(key) for table in tables for key in table.value.keys if isinstance(key, ast.Constant)]  # type: ignore[attr-defined]
    assert {"", "events", "cancel"} <= set(found)
    return found


class NoReceipts:
    """Nobody's receipt is here."""

    async def receipt(self, *, request_id: str, tenant_id: str) -> None:
        return None

    async def keys(self) -> dict[str, bytes]:
        return {}


@pytest.fixture
def receipts() -> NoReceipts:
    return NoReceipts()


class TestForeignRequest:
    @pytest.mark.parametrize("action", actions())
    @pytest.mark.parametrize("form", ["{}", "chatcmpl-{}", "resp_{}"])
    async def test_is_not_found_by_any_method_of_any_route(self, gateway: Gateway, action: str, form: str) -> None:
        claim, _ = await running(gateway, ["a"])
        theirs, unknown = claim.ticket.request_id, mint_request_id()
        answers = []
        for request_id in (theirs, unknown):
            path = f"/v1/requests/{form.format(request_id)}" + (f"/{action}" if action else "")
            for method in InferenceApp(gateway.services)._routes(path):
                answer = await gateway.http.request(method, path, headers=gateway.auth(gateway.mallory))
                assert answer.status_code == 404, (method, path)
                answers.append(answer.text.replace(request_id, "ID"))
        assert len(set(answers[: len(answers) // 2])) == len(set(answers))  # as for one that does not exist
        status = await gateway.queue.status(request_id=theirs)
        assert status is not None
        assert status.state is JobState.RUNNING

    async def test_is_not_cancelled_over_a_websocket(self, gateway: Gateway) -> None:
        claim, _ = await running(gateway, ["a"])
        async with socket(gateway, key=gateway.mallory) as connection:
            assert (await event(connection))["type"] == "session.created"
            await say(connection, type="response.cancel", response_id=f"resp_{claim.ticket.request_id}")
            refused = await event(connection)
        assert (refused["type"], refused["error"]["code"]) == ("error", "not_found")
        status = await gateway.queue.status(request_id=claim.ticket.request_id)
        assert status is not None
        assert status.state is JobState.RUNNING

    async def test_is_not_attached_to_by_its_idempotency_key(self, gateway: Gateway) -> None:
        body = {"model": "toy-1", "messages": [{"role": "user", "content": "Hello"}]}
        seen = []
        for key in (gateway.key, gateway.mallory):
            headers = {**gateway.auth(key), "idempotency-key": "shared"}
            async with gateway.http.stream(
                "POST", "/v1/chat/completions", json={**body, "stream": True}, headers=headers
            ) as answer:
                seen.append(answer.headers["x-request-id"])
        assert seen[0] != seen[1]
