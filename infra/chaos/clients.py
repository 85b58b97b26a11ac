"""The load of a round: clients of several tenants, each of one kind, who note all that they see. Called by `round`.

Kinds: `stream` and `plain` call once; `leaver` closes its stream after some events; `stayer` does so too, asked for
`on_disconnect: continue` and reads the rest later; `resume` goes on where a broken stream stopped, at another gateway;
`retry-stream` and `retry-plain` repeat their call under one Idempotency-Key until they are answered.
Invariant: nothing is corrected here. What came is noted as it came, in order.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import httpx

from infra.chaos.facts import Call, Connection, EventSeen, Tokens

KINDS = {"stream": 4, "plain": 2, "leaver": 2, "stayer": 2, "resume": 4, "retry-stream": 4, "retry-plain": 2}
PATIENCE_SECONDS = 90.0  # without a byte; the platform's heartbeats come every few seconds
TRIES_MAX = 120
AGAIN_SECONDS = 0.5
WORDS = ("water", "gate", "river", "stone", "mill", "field", "stream", "weir", "keeper", "snow", "spring", "fish")
_AGAIN = (409, 429, 500, 503)  # asked again; a 502 is how a request ended
_STREAMED = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of the plan. `at`: seconds after the round's beginning. `leave_after`: events, for those who leave."""

    name: str
    kind: str
    tenant: str
    said: str
    tokens: int
    at: float
    gateway: int
    leave_after: int

    @property
    def is_streamed(self) -> bool:
        return self.kind not in ("plain", "retry-plain")


def plan_calls(chance: random.Random, *, count: int, tenants: Sequence[str], load_seconds: float) -> tuple[Asked, ...]:
    """`count` calls, drawn from the seed. Each says something that no other call of the round says."""
    kinds = chance.choices(list(KINDS), weights=list(KINDS.values()), k=count)
    return tuple(
        Asked(
            name=f"{chance.getrandbits(40):010x}",
            kind=kind,
            tenant=chance.choice(tenants),
            said=f"{number} " + " ".join(chance.choices(WORDS, k=chance.randint(4, 12))),
            tokens=chance.choice((20, 60, 100, 160)),
            at=round(chance.uniform(0.0, load_seconds), 3),
            gateway=chance.randrange(1 << 8),
            leave_after=chance.randint(1, 40),
        )
        for number, kind in enumerate(kinds)
    )


class Client:
    """Makes the calls of a round. `gateways` are base URLs; a call that fails goes on at the next one."""

    def __init__(self, *, gateways: Sequence[str], keys: dict[str, str], model: str) -> None:
        self._gateways = gateways
        self._keys = keys
        self._model = model
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=limits, verify=False)  # noqa: S501 - plain HTTP

    async def aclose(self) -> None:
        await self._http.aclose()

    async def make(self, asked: Asked, *, ended: Callable[[], None]) -> Call:
        """One call from its time on to its end, whatever that is."""
        call = Call(name=asked.name, kind=asked.kind, tenant=asked.tenant, said=asked.said)
        await asyncio.sleep(asked.at)
        if asked.kind.startswith("retry"):
            await self._until_answered(asked, call)
        else:
            await self._post(asked, call)
            if asked.kind in ("resume", "stayer"):
                await self._read_on(asked, call)
        ended()
        return call

    async def _until_answered(self, asked: Asked, call: Call) -> None:
        for number in range(TRIES_MAX):
            connection = await self._post(asked, call, move=number)
            if connection.end in ("done", "late"):
                return
            if connection.end == "error" and connection.status not in _AGAIN:
                return  # it was refused, or it ended in failure: every repeat is told the same
            await asyncio.sleep(AGAIN_SECONDS)
        call.unanswered = True

    async def _read_on(self, asked: Asked, call: Call) -> None:
        """What a stream that broke off, or was left, has after its last event; from the next gateway on."""
        first = call.connections[0]
        if not first.is_accepted or first.end in ("done", "error", "late"):
            return
        for number in range(1, TRIES_MAX):
            read = [event for item in call.connections for event in item.events]
            after = read[-1].seq if read else 0
            connection = Connection(request_id=first.request_id, after_seq=after)
            call.connections.append(connection)
            headers = self._headers(asked) | ({"Last-Event-ID": f"{read[-1].epoch}-{after}"} if read else {})
            url = f"{self._gateway(asked, number)}/requests/{first.request_id}/events"
            await self._exchange("GET", url, connection, headers=headers)
            if connection.end != "cut" and connection.status not in (500, 502, 503):
                return
            await asyncio.sleep(AGAIN_SECONDS)
        call.unanswered = True

    async def _post(self, asked: Asked, call: Call, *, move: int = 0) -> Connection:
        connection = Connection()
        call.connections.append(connection)
        document: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"say: {asked.said}"}],
            "max_tokens": asked.tokens,
            "ignore_eos": True,
        }
        if asked.is_streamed:
            document |= {"stream": True, "stream_options": {"include_usage": True}}
        if asked.kind in ("stayer", "resume"):
            document["on_disconnect"] = "continue"
        headers = self._headers(asked)
        if asked.kind.startswith("retry"):
            headers["Idempotency-Key"] = asked.name
        leave_after = asked.leave_after if asked.kind in ("leaver", "stayer") else 0
        url = f"{self._gateway(asked, move)}/chat/completions"
        await self._exchange("POST", url, connection, headers=headers, json=document, leave_after=leave_after)
        return connection

    def _gateway(self, asked: Asked, move: int) -> str:
        return self._gateways[(asked.gateway + move) % len(self._gateways)]

    def _headers(self, asked: Asked) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[asked.tenant]}"}

    async def _exchange(
        self, method: str, url: str, connection: Connection, *, leave_after: int = 0, **options: Any
    ) -> None:
        try:
            async with self._http.stream(method, url, **options) as response:
                connection.status = response.status_code
                connection.request_id = response.headers.get("x-request-id", connection.request_id)
                if response.headers.get("content-type", "").startswith(_STREAMED):
                    await _read_stream(response, connection, leave_after=leave_after)
                else:
                    read_whole(await response.aread(), connection)
        except httpx.TimeoutException:
            connection.end = "late"
        except httpx.HTTPError as error:
            connection.code = type(error).__name__

    async def states(self, asked: dict[str, str]) -> dict[str, tuple[int, dict[str, Any]]]:
        """GET /v1/requests/{id} for every id (id -> tenant); (status, document) by id."""
        found: dict[str, tuple[int, dict[str, Any]]] = {}
        for number, (request_id, tenant) in enumerate(asked.items()):
            url = f"{self._gateways[number % len(self._gateways)]}/requests/{request_id}"
            headers = {"Authorization": f"Bearer {self._keys[tenant]}"}
            try:
                response = await self._http.get(url, headers=headers)
                found[request_id] = response.status_code, response.json()
            except (httpx.HTTPError, ValueError) as error:
                found[request_id] = 0, {"error": type(error).__name__}
        return found


async def _read_stream(response: httpx.Response, connection: Connection, *, leave_after: int) -> None:
    event_id = ""
    async for line in response.aiter_lines():
        if line.startswith("id:"):
            event_id = line[3:].strip()
        elif line.startswith("data:"):
            read_data(line[5:].strip(), event_id, connection)
            event_id = ""
            if leave_after and len(connection.events) >= leave_after:
                connection.end = "left"
                return


def read_data(data: str, event_id: str, connection: Connection) -> None:
    """Notes one event's data."""
    if data == "[DONE]":
        connection.end = "done"
        return
    document = json.loads(data)
    if "error" in document:
        connection.end, connection.code = "error", str(document["error"].get("code"))
        return
    text = "".join(choice.get("delta", {}).get("content") or "" for choice in document.get("choices", ()))
    if event_id:
        epoch, _, seq = event_id.rpartition("-")
        connection.events.append(EventSeen(epoch, int(seq), text))
        connection.text += text
    if document.get("usage"):
        connection.usage, connection.cost = usage_of(document["usage"])


def read_whole(body: bytes, connection: Connection) -> None:
    """Notes an answer that is no stream."""
    try:
        document = json.loads(body)
    except ValueError:
        connection.end, connection.code = "error", "not_json"
        return
    if connection.status != 200:
        connection.end, connection.code = "error", str((document.get("error") or {}).get("code"))
        return
    connection.end = "done"
    connection.text = document["choices"][0]["message"]["content"] or ""
    connection.usage, connection.cost = usage_of(document["usage"])


def usage_of(usage: dict[str, Any]) -> tuple[Tokens, Decimal]:
    """Counts and cost as the public API tells them."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Tokens(usage["prompt_tokens"], cached, usage["completion_tokens"]), Decimal(usage["cost"])


def without_said(asked: Asked) -> Asked:
    """For an engine that says what it likes."""
    return replace(asked, said="")
