"""Dead letters: requests that were set aside because engines died, or workers were lost, while they ran. With evidence,
and a replay. For operators only: an engine's log may say what no other role should read."""

from typing import Any

from asgiref.sync import async_to_sync
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from contracts.errors import WeirError
from contracts.jobs import Ticket
from contracts.tenancy import TenantContext
from controlplane.dead_letters import reading, replay
from controlplane.dead_letters.reading import DeadLetter
from controlplane.env import environment
from controlplane.pages.frame import Row, link, moment, page
from stores.redis import open_redis
from stores.redis_blocking import blocking_redis
from stores.system import SystemClock
from tenants.admin import actor_of
from tenants.models import OutboxEvent, Tenant

AWAY = "Redis does not answer: dead letters cannot be read right now."


@permission_required("controlplane.open_dead_letters", raise_exception=True)
@require_safe
def dead_letters(request: HttpRequest) -> HttpResponse:
    """The newest of every pool."""
    rows: list[Row] = []
    problem = None
    try:
        names = _names()
        rows = [_row(letter, names) for letter in reading.newest(_client())]
    except (RedisError, OSError):
        problem = AWAY
    headers = ["Set aside", "Request", "Tenant", "Pool", "Attempts", "Engine deaths", "Lapses"]
    context = {"title": "Dead letters", "problem": problem, "table": {"headers": headers, "rows": rows}}
    return page(request, "dead_letters", context)


@permission_required("controlplane.open_dead_letters", raise_exception=True)
@require_http_methods(["GET", "HEAD", "POST"])
def dead_letter(request: HttpRequest, pool: str, entry_id: str) -> HttpResponse:
    """One of them with its losses and what the engines said; POST runs it once more."""
    try:
        letter = reading.find(_client(), pool=pool, entry_id=entry_id)
        deaths = [] if letter is None else reading.deaths_of(_client(), letter)
    except ResponseError:  # no entry has such an id
        letter, deaths = None, []
    except (RedisError, OSError):
        return page(request, "dead_letter", {"title": "Dead letter", "problem": AWAY})
    if letter is None:
        raise Http404
    if request.method == "POST":
        return _replay(request, letter)
    context = {
        "title": f"Dead letter {letter.request_id}",
        "facts": _facts(letter),
        "deaths": [{"of": f"{death.worker}, {moment(death.at_ms)}", **_said(death)} for death in deaths],
        "may_replay": request.user.has_perm("controlplane.replay_dead_letters"),
        "house": replay.HOUSE,
    }
    return page(request, "dead_letter", context)


@permission_required("controlplane.replay_dead_letters", raise_exception=True)
def _replay(request: HttpRequest, letter: DeadLetter) -> HttpResponse:
    try:
        clock = SystemClock()
        ticket, context = replay.prepare(letter, actor=actor_of(request), clock=clock)
        async_to_sync(_run)(ticket, context)
    except WeirError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"Runs once more as request {ticket.request_id}.")
    return redirect(reverse("dead_letter", args=[letter.pool, letter.entry_id]))


async def _run(ticket: Ticket, context: TenantContext) -> None:
    redis = open_redis(environment().redis, reply_timeout=replay.STORE_SECONDS)
    try:
        await replay.run(ticket, context, redis=redis, clock=SystemClock())
    finally:
        await redis.aclose(close_connection_pool=True)


def _client() -> Redis:
    return blocking_redis(environment().redis)


def _names() -> dict[str, str]:
    return {str(key): name for key, name in Tenant.objects.values_list("id", "name")}


def _row(letter: DeadLetter, names: dict[str, str]) -> Row:
    where = reverse("dead_letter", args=[letter.pool, letter.entry_id])
    return [
        moment(letter.at_ms),
        link(where, f"…{letter.request_id[-12:]}"),
        names.get(letter.tenant_id, letter.tenant_id),
        letter.pool,
        str(letter.attempts),
        str(letter.deaths),
        str(letter.lapses),
    ]


def _facts(letter: DeadLetter) -> list[tuple[str, Any]]:
    ticket, asked = letter.ticket, letter.asked
    facts: list[tuple[str, Any]] = [
        ("Request", link(reverse("request_timeline", args=[letter.request_id]), letter.request_id)),
        ("Tenant", _names().get(letter.tenant_id, letter.tenant_id)),
        ("Pool", letter.pool),
        ("Model", ticket.model),
        ("Set aside", moment(letter.at_ms)),
        ("Attempts", str(letter.attempts)),
        ("Engine deaths", str(letter.deaths)),
        ("Lapsed leases", str(letter.lapses)),
        ("Losses", "\n".join(_loss(line) for line in letter.losses)),
        ("Seed", str(asked.pop("seed", "none: the engine drew its own"))),
        ("Asked for", ", ".join(f"{name} {value}" for name, value in asked.items())),
        ("Prompt", f"{ticket.prompt_tokens:,} tokens; its text is not shown"),
    ]
    replays = OutboxEvent.objects.filter(name="request.replayed", body__subject=f"request:{letter.request_id}")
    for event in replays.order_by("id"):
        new = event.body["after"]["replay"]
        told = link(reverse("request_timeline", args=[new]), new)
        facts += [(f"Replayed by {event.body['actor']}", told)]
    return [(name, value) for name, value in facts if value]


def _loss(line: str) -> str:
    """`death w1 2 1800000000000`, in words."""
    what, worker, attempt, at_ms = [*line.split(" "), "", "", ""][:4]
    words = {"death": "engine died", "lapse": "lease lapsed"}.get(what, what)
    when = moment(int(at_ms)) if at_ms.isdigit() else at_ms
    return f"attempt {attempt}: {words} at {worker}, {when}"


def _said(death: reading.Death) -> dict[str, Any]:
    others = death.held - 1
    with_others = f"with {others} other request{'s' * (others != 1)}" if others else "alone in it"
    return {"held": with_others, "log": death.log or "The engine's log was empty, or is not on its worker's disk."}
