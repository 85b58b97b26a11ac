"""What runs: the exact configuration of every pool's engines, and each worker's last heartbeat, in a person's words.

Reads Redis only. What a worker of another release wrote otherwise is said to be unreadable, never an error page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from redis import Redis
from redis.exceptions import RedisError

from contracts.models import ModelCard
from contracts.names import MODELS, WORKERS_PATTERN, worker_id_of
from contracts.wire import WireError, decode
from controlplane.env import environment
from controlplane.pages.frame import Row, moment, page, since
from stores.redis_blocking import blocking_redis
from stores.system import SystemClock
from workers.admission import KV_TOKENS_UNKNOWN

AWAY = "Redis does not answer; what runs cannot be shown."
STATES = {
    "ready": "Ready",
    "starting": "Starting",
    "engine_down": "Engine down: its worker starts it again",
    "draining": "Draining: takes nothing new",
}
HEADERS = [
    "Worker", "State", "Model", "Pool", "Engine", "Running", "Free sequences", "Free KV cache", "Last heartbeat",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Running:
    """Model cards by model, heartbeats by worker, and the names of what could not be read."""

    cards: tuple[ModelCard, ...]
    beats: Mapping[str, Mapping[str, Any]]
    unread: tuple[str, ...]

    @property
    def ready(self) -> int:
        """How many workers take requests."""
        return sum(beat.get("state") == "ready" for beat in self.beats.values())

    @property
    def pools_served(self) -> set[str]:
        """Pools with a worker that takes requests."""
        return {str(beat.get("pool")) for beat in self.beats.values() if beat.get("state") == "ready"}


@permission_required("controlplane.open_engines", raise_exception=True)
@require_safe
def engines(request: HttpRequest) -> HttpResponse:
    """Every pool and every worker that shows signs of life."""
    try:
        running = read_running()
    except (RedisError, OSError):
        return page(request, "engines", {"title": "Engines", "problem": AWAY})
    now_ms = SystemClock().now_ms()
    problem = f"Written by another release, and not shown: {', '.join(running.unread)}." if running.unread else None
    context = {
        "title": "Engines",
        "cards": [(card.model, _facts(card)) for card in running.cards],
        "workers": {"headers": HEADERS, "rows": [_row(name, beat, now_ms) for name, beat in running.beats.items()]},
        "problem": problem,
    }
    return page(request, "engines", context)


def read_running() -> Running:
    """What is registered right now. Raises RedisError."""
    client = blocking_redis(environment().redis)
    cards, beats, unread = [], {}, []
    for name, raw in sorted(cast("dict[bytes, bytes]", client.hgetall(MODELS)).items()):
        try:
            cards.append(decode(ModelCard, raw))
        except WireError:
            unread.append(f"model {name.decode(errors='replace')}")
    for key in sorted(client.scan_iter(WORKERS_PATTERN, count=5_000)):
        worker = worker_id_of(key.decode(errors="replace"))
        beat = _beat(client, key)
        if beat is None:
            unread.append(f"worker {worker}")
        elif beat:
            beats[worker] = beat
    return Running(tuple(cards), beats, tuple(unread))


def _beat(client: Redis, key: bytes) -> dict[str, Any] | None:
    """Empty when it has just lapsed; None when it cannot be read."""
    raw = client.get(key)
    if not isinstance(raw, bytes):
        return {}
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _row(worker: str, beat: Mapping[str, Any], now_ms: int) -> Row:
    at_ms = beat.get("at_ms")
    return [
        f"{worker}, process {beat['pid']}" if "pid" in beat else worker,
        _state(beat),
        str(beat.get("model", "")),
        str(beat.get("pool", "")),
        str(beat.get("engine", "")),
        _count(beat.get("running")),
        _count(beat.get("free_slots")),
        _kv_cache(beat.get("free_kv_tokens")),
        since(at_ms, now_ms=now_ms) if isinstance(at_ms, int) else "",
    ]


def _state(beat: Mapping[str, Any]) -> str:
    """With what it lost: those counts are worth a word only where they are not nothing."""
    said = STATES.get(str(beat.get("state")), str(beat.get("state", "")))
    for field, what in (
        ("attempt_log_failures", "attempt logs not written"),
        ("evaluation_logs_dropped", "evaluation logs dropped"),
    ):
        if beat.get(field):
            said += f"; {_count(beat[field])} {what}"
    return said


def _kv_cache(tokens: Any) -> str:
    """An engine that does not say how much it holds, and one that is empty, take what their sequences allow."""
    if isinstance(tokens, int) and tokens >= KV_TOKENS_UNKNOWN:
        return "not limited"
    return f"{_count(tokens)} tokens" if isinstance(tokens, int) else ""


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _facts(card: ModelCard) -> list[tuple[str, str]]:
    facts = [
        ("Pool", card.pool),
        ("Engine", f"{card.engine} {card.engine_version}"),
        ("Repository", card.repository),
        ("Revision", card.revision),
        ("Weights SHA-256", card.weights_sha256),
        ("Tokenizer SHA-256", card.tokenizer_sha256),
        ("Weights / KV cache type", f"{card.dtype} / {card.kv_cache_dtype}"),
        ("Layers", _count(card.layers)),
        ("Heads", _count(card.heads)),
        ("KV heads", _count(card.kv_heads)),
        ("Head size", _count(card.head_size)),
        ("Vocabulary", f"{_count(card.vocabulary)} tokens"),
        ("Context", f"{_count(card.context_tokens)} tokens"),
        ("Block of the KV cache", f"{_count(card.block_tokens)} tokens"),
        ("Engine makes out tool calls", "yes" if card.tools else "no"),
        ("Registered", moment(card.created_at_ms)),
    ]
    return [(name, value.strip()) for name, value in facts if value.strip()]
