"""POST /v1/chat/completions and /v1/completions: the nine steps as seen from the edge. Called by `app.py`."""

import hashlib
from typing import Any

import orjson

from contracts.errors import InvalidRequest
from contracts.jobs import Endpoint
from gateway.admission import Admission
from gateway.edge import background
from gateway.edge.answers import send_stream, send_whole
from gateway.edge.body import read_body
from gateway.edge.callers import identified
from gateway.edge.exchange import Exchange
from gateway.services import GatewayServices
from gateway.stream.answer import Answer
from gateway.surface import limits
from gateway.surface.errors import rate_headers
from gateway.surface.json_text import parse_object
from gateway.surface.schema import check_request
from tenants.limits.holds import Idempotency


async def infer(exchange: Exchange, *, services: GatewayServices, admission: Admission, endpoint: Endpoint) -> None:
    """One request, from its key to its last byte. Raises WeirError before the first byte of the answer only."""
    settings = services.settings
    caller = await identified(exchange, admission)
    body = await read_body(exchange.receive, exchange.headers, deadline_seconds=settings.body_read_seconds)
    received_at = services.clock.monotonic()
    document = parse_object(body)
    exchange.model = str(document.get("model"))
    asked = check_request(document, endpoint=endpoint)
    idempotency = idempotency_of(exchange.headers, document, endpoint=endpoint, ttl_ms=settings.idempotency_ms)
    if asked.background:
        await background.start(
            exchange,
            caller,
            asked,
            services=services,
            admission=admission,
            idempotency=idempotency,
            received_at=received_at,
        )
        return
    admitted = await admission.admit(
        caller, asked, request_id=exchange.request_id, idempotency=idempotency, received_at=received_at
    )
    exchange.request_id = admitted.ticket.request_id
    answer = Answer(
        ticket=admitted.ticket,
        queue=admitted.queue,
        inbox=admitted.inbox,
        generation=None if asked.continue_on_disconnect else admitted.generation,
        from_log=admitted.attached,
        headers=tuple(rate_headers(requests=admitted.requests, tokens=admitted.tokens)),
    )
    try:
        send = send_stream if asked.stream else send_whole
        await send(exchange, answer, settings=settings)
    finally:
        services.mailbox.close(admitted.inbox)


def idempotency_of(
    headers: dict[bytes, bytes], document: dict[str, Any], *, endpoint: Endpoint, ttl_ms: int
) -> Idempotency | None:
    """The client's Idempotency-Key with a digest of what it asks (key order and white space do not count)."""
    raw = headers.get(b"idempotency-key")
    if raw is None:
        return None
    if not 1 <= len(raw) <= limits.IDEMPOTENCY_KEY_MAX or not all(33 <= byte <= 126 for byte in raw):
        raise InvalidRequest(
            f"Idempotency-Key must be 1 to {limits.IDEMPOTENCY_KEY_MAX} visible ASCII characters, no spaces",
            param="Idempotency-Key",
        )
    canonical = endpoint.value.encode() + b"\0" + orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return Idempotency(
        key_digest=hashlib.sha256(raw).hexdigest(),
        body_digest=hashlib.sha256(canonical).hexdigest(),
        ttl_ms=ttl_ms,
    )
