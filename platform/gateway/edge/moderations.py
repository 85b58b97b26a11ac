"""POST /v1/moderations in OpenAI's shape. Step 1; called by `app.py`, judged by `gateway.moderation`."""

from typing import Any

from gateway.admission import Admission
from gateway.edge.body import read_body
from gateway.edge.callers import identified
from gateway.edge.exchange import Exchange
from gateway.moderation import Judged, moderate
from gateway.services import GatewayServices
from gateway.surface.json_text import parse_object
from gateway.surface.moderations import MODEL, texts_of


async def show_moderation(exchange: Exchange, *, services: GatewayServices, admission: Admission) -> None:
    """Each input judged by the prompt rules of the caller's policy."""
    caller = await identified(exchange, admission)
    document = parse_object(
        await read_body(exchange.receive, exchange.headers, deadline_seconds=services.settings.body_read_seconds)
    )
    judged = await moderate(
        caller, texts_of(document), request_id=exchange.request_id, services=services, admission=admission
    )
    await exchange.json(
        200, {"id": f"modr-{exchange.request_id}", "model": MODEL, "results": [_result(one) for one in judged]}
    )


def _result(judged: Judged) -> dict[str, Any]:
    return {
        "flagged": judged.flagged,
        "categories": judged.categories,
        "category_scores": {name: float(found) for name, found in judged.categories.items()},
        "category_applied_input_types": {name: ["text"] if found else [] for name, found in judged.categories.items()},
    }
