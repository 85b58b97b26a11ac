"""Sends the answer of an admitted request: as a stream or whole, until its end, its deadline or its client's. Step 7.

Called by `inference.py` and `requests.py`. Invariants: a lost client's request is cancelled within a second, under the
generation it was attached with (unless it asked to go on); a stream that fails says so in band and never says [DONE].
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.exceptions import RedisError

from contracts.errors import DeadlinePassed, SlowReader, WeirError
from contracts.jobs import Ticket
from fairqueue.messages import Final
from gateway.edge.exchange import Exchange
from gateway.services import GatewaySettings
from gateway.stream import assemble, sse
from gateway.stream.answer import Answer, release
from gateway.stream.mailbox import Inbox
from gateway.stream.relay import ClientLost, Cut, Relay
from gateway.surface.errors import Headers, InternalError, error_object, failure_of

log = logging.getLogger("weir.gateway.answers")

LAST_WORDS_SECONDS = 1.0
PLACE_SECONDS = 1.0


async def send_stream(exchange: Exchange, answer: Answer, *, settings: GatewaySettings, held: bool = True) -> None:
    """Server-Sent Events until the end. `held`: the head waits for the first of them, `head_hold_seconds` at most.

    What only the engine refuses is then an error answer, as it is for a whole one: raises WeirError before the head.
    Later failures go into the stream.
    """
    relay = answer.relay()
    last_words = b""
    try:
        async with _watched(exchange, answer.inbox), _deadline(settings):
            if not held:
                await _continue(exchange, answer, sse.QUEUED)
            await _send_batches(exchange, answer, relay, settings=settings)
            final = _required(relay.final)
            failure = failure_of(final)
            if failure is not None and not exchange.started:
                exchange.beside = _billed(final)
                raise failure
            await _continue(exchange, answer, ending(answer.ticket, final), more=False)
            return
    except (ClientLost, OSError):
        await release(answer)
        return
    except Exception as error:
        cut = error.final if isinstance(error, Cut) else None
        if not exchange.started:
            await release(answer)
            exchange.beside = _billed(cut)
            raise
        if not isinstance(error, WeirError):
            log.exception("request %s: its stream failed", answer.ticket.request_id)
            error = InternalError()
        # Where its bill is not known yet, the request's id finds it.
        beside = {"weir": {"request_id": answer.ticket.request_id}} if cut is None else assemble.bill(cut)
        last_words = sse.data(error_object(error) | beside)
    await release(answer)
    with suppress(SlowReader, OSError, TimeoutError):
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            await exchange.write(last_words, more=False)


async def _send_batches(exchange: Exchange, answer: Answer, relay: Relay, *, settings: GatewaySettings) -> None:
    batches = relay.batches(
        beat_seconds=settings.heartbeat_seconds,
        first_beat_seconds=min(settings.head_hold_seconds, settings.heartbeat_seconds),
        from_log=answer.from_log,
    )
    async for batch in batches:
        if batch is not None:
            data = sse.events(epoch=batch.epoch, first_seq=batch.first_seq, frames=batch.frames)
        else:
            data = await _heartbeat(exchange, answer, relay)
        await _continue(exchange, answer, data)


async def _heartbeat(exchange: Exchange, answer: Answer, relay: Relay) -> bytes:
    """A comment: where the request stands while it waits, and else that it lives."""
    if not relay.epoch:
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(PLACE_SECONDS):
                status = await answer.queue.status(request_id=answer.ticket.request_id)
                place = None if status is None else await answer.queue.place(status)
            if place is not None:
                return sse.waiting(place)
    return sse.PING if exchange.started else sse.QUEUED


async def _continue(exchange: Exchange, answer: Answer, data: bytes, *, more: bool = True) -> None:
    """The next bytes of a stream, after its head where they are the first."""
    if not exchange.started:
        await exchange.stream(headers=[*sse.HEADERS, *answer.headers], between=sse.PING)
    await exchange.write(data, more=more)


async def send_whole(exchange: Exchange, answer: Answer, *, settings: GatewaySettings) -> None:
    """One JSON answer. Raises WeirError for what `app.py` turns into an error answer."""
    relay, frames = answer.relay(), list[bytes]()
    try:
        async with _watched(exchange, answer.inbox), _deadline(settings):
            async for batch in relay.batches(beat_seconds=settings.heartbeat_seconds, from_log=answer.from_log):
                if batch is not None:
                    frames += batch.frames
    except (ClientLost, OSError):
        await release(answer)
        return
    except Exception as error:
        await release(answer)
        exchange.beside = _billed(error.final if isinstance(error, Cut) else None)
        raise
    final = _required(relay.final)
    failure = failure_of(final)
    if failure is not None:
        exchange.beside = _billed(final)
        raise failure
    ticket = answer.ticket
    document = assemble.answer(
        frames,
        request_id=ticket.request_id,
        endpoint=ticket.endpoint,
        model=ticket.model,
        created_s=ticket.admitted_at_ms // 1000,
        final=final,
    )
    await exchange.json(200, document, headers=[*answer.headers, *timing_headers(final)])


def timing_headers(final: Final) -> Headers:
    """Where the time went: a header for each step, and all in the form that browsers draw (W3C Server Timing)."""
    timings = assemble.timings_ms(final.timings)
    if not timings:
        return []
    steps = [(f"x-weir-{name.replace('_', '-')}".encode(), f"{ms:g}".encode()) for name, ms in timings.items()]
    together = ", ".join(f"{name.removesuffix('_ms')};dur={ms:g}" for name, ms in timings.items())
    return [*steps, (b"server-timing", together.encode())]


def ending(ticket: Ticket, final: Final) -> bytes:
    """The last events: usage when asked for, then [DONE]; or the error, with what was billed until then."""
    failure = failure_of(final)
    if failure is not None:
        return sse.data(error_object(failure) | assemble.bill(final))
    if not ticket.include_usage:
        return sse.DONE
    chunk = assemble.usage_chunk(
        request_id=ticket.request_id,
        endpoint=ticket.endpoint,
        model=ticket.model,
        created_s=ticket.admitted_at_ms // 1000,
        final=final,
    )
    return sse.data(chunk) + sse.DONE


def _billed(final: Final | None) -> dict[str, Any]:
    """For an error answer without a body of its own: the bill, where there is one."""
    return assemble.bill(final) if final is not None and (final.counts.total or final.cost_nano) else {}


def _required(final: Final | None) -> Final:
    assert final is not None, "a relay ends with a final frame or raises"
    return final


@asynccontextmanager
async def _deadline(settings: GatewaySettings) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(settings.request_seconds):
            yield
    except TimeoutError as error:
        raise DeadlinePassed(f"the request took longer than {settings.request_seconds:g} seconds") from error


@asynccontextmanager
async def _watched(exchange: Exchange, inbox: Inbox) -> AsyncIterator[None]:
    """Interrupts the inbox when the client closes, whatever the answer waits for."""
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as tasks:
        watcher = tasks.create_task(_watch(exchange, inbox))
        try:
            yield
        except Exception as error:  # noqa: BLE001 - carried over the group, which would wrap it
            failure = error
        finally:
            watcher.cancel()
    if failure is not None:
        raise failure


async def _watch(exchange: Exchange, inbox: Inbox) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
    inbox.interrupt()
