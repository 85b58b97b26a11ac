"""Every route of the inference API, by who may ask it: read from the code itself, so that a new one has to be classed.

A route that names a request is tried with another tenant's request; every other one without a key, and with one of the
wrong scope.
"""

import ast
import inspect
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from contracts.outcomes import JobState
from gateway.edge.app import InferenceApp
from gateway.realtime import consumer
from gateway.surface.openapi import document
from stores.system import mint_request_id
from tests.factories.jobs import make_row
from tests.functional.gateway.cast import CARD, CONTEXT
from tests.functional.gateway.conftest import Gateway
from tests.functional.gateway.sockets import close_code, event, say, socket
from tests.functional.gateway.test_lifecycle import PATH, STREAM, running

OPEN = {"/v1/openapi.json", "/v1/receipt-keys", "/health/live", "/health/ready"}
KEYED = {  # what is asked and told is of the key's own tenant: nothing in it names another's
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/moderations",
    "/v1/models",
    "/v1/usage",
    "/v1/organization/usage/completions",
    "/v1/organization/costs",
}
OF_A_MODEL = {"/v1/models/{model}"}
SOCKET = {"/v1/realtime"}
EVENTS = {"session.update", "conversation.item.create", "response.create"}  # of the connection's own conversation
EVENTS_OF_A_REQUEST = {"response.cancel"}

Stand = Callable[[Gateway], Awaitable[str]]


def actions() -> list[str]:
    """What may follow a request's id in a path: the keys of the dictionary in `InferenceApp._routes`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(InferenceApp._routes)))
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)]
    found = [ast.literal_eval(key) for table in tables for key in table.value.keys if isinstance(key, ast.Constant)]  # type: ignore[attr-defined]
    assert {"", "events", "cancel"} <= set(found)
    return found


def forms() -> set[str]:
    """Beginnings and middles of the paths that hold a name: texts with a slash in `InferenceApp._routes`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(InferenceApp._routes)))
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in found if "/" in text and " " not in text}


class AcmesReceipts:
    """Each request of acme has one."""

    async def receipt(self, *, request_id: str, tenant_id: str) -> dict[str, Any] | None:
        return {"receipt": {"request_id": request_id}} if tenant_id == CONTEXT.tenant_id else None

    async def keys(self) -> dict[str, bytes]:
        return {}


@pytest.fixture
def receipts() -> AcmesReceipts:
    return AcmesReceipts()


async def is_not_found(gateway: Gateway, request_id: str, action: str, *, key: str, form: str = "{}") -> None:
    """By any method of the route, and in the words for a request that does not exist."""
    answers = []
    for one in (request_id, mint_request_id()):
        path = f"/v1/requests/{form.format(one)}" + (f"/{action}" if action else "")
        for method in InferenceApp(gateway.services)._routes(path):
            answer = await gateway.http.request(method, path, headers=gateway.auth(key))
            assert answer.status_code == 404, (method, path)
            answers.append(answer.text.replace(one, "ID"))
    assert len(set(answers[: len(answers) // 2])) == len(set(answers))


async def queued(gateway: Gateway) -> str:
    body = STREAM | {"on_disconnect": "continue"}
    async with gateway.http.stream("POST", PATH, json=body, headers=gateway.auth()) as answer:
        return answer.headers["x-request-id"]


async def claimed(gateway: Gateway) -> str:
    claim, _ = await running(gateway, ["a"])
    return str(claim.ticket.request_id)


async def settled(gateway: Gateway) -> str:
    claim, frames = await running(gateway, ["a"])
    await gateway.worker.step(claim, frames, first_seq=1)
    await gateway.worker.end(claim, last_seq=len(frames))
    return str(claim.ticket.request_id)


async def metered(gateway: Gateway) -> str:
    request_id = await settled(gateway)
    status = await gateway.queue.status(request_id=request_id)
    assert status is not None
    gateway.directory.rows[CONTEXT.tenant_id, request_id] = make_row(status.ticket)
    await gateway.services.redis.flushall()
    return request_id


async def refused(gateway: Gateway) -> str:
    answer = await gateway.http.post(PATH, json=STREAM | {"temperature": 9}, headers=gateway.auth())
    assert answer.status_code == 400
    return str(answer.headers["x-request-id"])


class TestTable:
    """A route that is in no class below is tried by nobody: it fails here."""

    def test_has_every_path_in_one_class(self, gateway: Gateway) -> None:
        classes = (OPEN, KEYED, SOCKET)
        assert set(InferenceApp(gateway.services)._exact) == set().union(*classes)
        assert sum(map(len, classes)) == len(set().union(*classes))

    def test_has_no_other_form_of_a_path_that_holds_a_name(self) -> None:
        assert forms() == {"/v1/models/", "/requests/", "/"}
        assert set(actions()) == {"", "receipt", "events", "cancel"}

    def test_is_what_the_api_says_of_itself(self) -> None:
        of_a_request = {"/v1/requests/{request_id}" + (f"/{action}" if action else "") for action in actions()}
        assert set(document()["paths"]) | OPEN | SOCKET == OPEN | KEYED | OF_A_MODEL | SOCKET | of_a_request

    def test_has_every_event_of_the_websocket_in_one_class(self) -> None:
        assert set(consumer._EVENTS) == EVENTS | EVENTS_OF_A_REQUEST


class TestScopes:
    """Who may ask: nobody without a key, and no key of another scope, by any method of any route."""

    @pytest.mark.parametrize("path", sorted(KEYED | {f"/v1/models/{CARD.model}"}))
    async def test_a_route_wants_a_key_of_its_scope(self, gateway: Gateway, path: str) -> None:
        manages = gateway.directory.issue(replace(CONTEXT, api_key_id="manager", scopes=frozenset({"manage"})))
        for method in InferenceApp(gateway.services)._routes(path):
            stranger = await gateway.http.request(method, path)
            other = await gateway.http.request(method, path, headers=gateway.auth(manages))
            assert (stranger.status_code, other.status_code) == (401, 403), method
            if method != "HEAD":
                assert other.json()["error"]["code"] == "insufficient_scope"

    @pytest.mark.parametrize("action", actions())
    async def test_a_request_s_route_wants_it_too(self, gateway: Gateway, action: str) -> None:
        manages = gateway.directory.issue(replace(CONTEXT, api_key_id="manager", scopes=frozenset({"manage"})))
        path = f"/v1/requests/{await claimed(gateway)}" + (f"/{action}" if action else "")
        for method in InferenceApp(gateway.services)._routes(path):
            stranger = await gateway.http.request(method, path)
            other = await gateway.http.request(method, path, headers=gateway.auth(manages))
            assert (stranger.status_code, other.status_code) == (401, 403), method

    @pytest.mark.parametrize("path", sorted(OPEN))
    async def test_an_open_route_wants_none(self, gateway: Gateway, path: str) -> None:
        for method in InferenceApp(gateway.services)._routes(path):
            assert (await gateway.http.request(method, path)).status_code == 200, method

    async def test_the_websocket_wants_it_too(self, gateway: Gateway) -> None:
        manages = gateway.directory.issue(replace(CONTEXT, api_key_id="manager", scopes=frozenset({"manage"})))
        for key, code in (("weir_nobody", 4401), (manages, 4403)):
            async with socket(gateway, key=key) as connection:
                assert await close_code(connection) == code


class TestForeignRequest:
    @pytest.mark.parametrize("action", actions())
    @pytest.mark.parametrize("form", ["{}", "chatcmpl-{}", "resp_{}"])
    async def test_t01_is_not_found_by_any_method_of_any_route(self, gateway: Gateway, action: str, form: str) -> None:
        request_id = await claimed(gateway)
        await is_not_found(gateway, request_id, action, key=gateway.mallory, form=form)
        status = await gateway.queue.status(request_id=request_id)
        assert status is not None
        assert status.state is JobState.RUNNING

    @pytest.mark.parametrize("stand", [queued, claimed, settled, metered, refused], ids=lambda stand: stand.__name__)
    async def test_t01_is_not_found_wherever_it_stands(self, gateway: Gateway, stand: Stand) -> None:
        request_id = await stand(gateway)
        for action in actions():
            await is_not_found(gateway, request_id, action, key=gateway.mallory)
            if action in ("", "receipt"):
                own = await gateway.http.get(f"/v1/requests/{request_id}/{action}", headers=gateway.auth())
                assert own.status_code == 200, action

    @pytest.mark.parametrize("kind", sorted(EVENTS_OF_A_REQUEST))
    async def test_t01_is_not_found_over_a_websocket(self, gateway: Gateway, kind: str) -> None:
        claim, _ = await running(gateway, ["a"])
        async with socket(gateway, key=gateway.mallory) as connection:
            assert (await event(connection))["type"] == "session.created"
            await say(connection, type=kind, response_id=f"resp_{claim.ticket.request_id}")
            refused = await event(connection)
        assert (refused["type"], refused["error"]["code"]) == ("error", "not_found")
        status = await gateway.queue.status(request_id=claim.ticket.request_id)
        assert status is not None
        assert status.state is JobState.RUNNING

    async def test_t01_is_not_attached_to_by_its_idempotency_key(self, gateway: Gateway) -> None:
        body = {"model": "toy-1", "messages": [{"role": "user", "content": "Hello"}]}
        seen = []
        for key in (gateway.key, gateway.mallory):
            headers = {**gateway.auth(key), "idempotency-key": "shared"}
            async with gateway.http.stream(
                "POST", "/v1/chat/completions", json={**body, "stream": True}, headers=headers
            ) as answer:
                seen.append(answer.headers["x-request-id"])
        assert seen[0] != seen[1]
