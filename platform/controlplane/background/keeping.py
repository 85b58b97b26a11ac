"""`gateway.kept.KeptRequests` over PostgreSQL, and what the settler and a rebuild ask of the same rows.

Built in `controlplane.wiring` for the gateway. Invariants: every call is bounded (`from_database`); prompts and answers
are sealed before they leave this process; only background requests are ever written here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import msgspec

from contracts.clock import Clock
from contracts.errors import Unavailable
from contracts.jobs import Ticket
from contracts.wire import WireError, decode, encode
from controlplane.background.sealing import seal, unseal
from controlplane.reads.database import from_database
from fairqueue.messages import Final, without_body
from gateway.kept import Kept, KeptAnswer, KeptState
from stores.sealing import Unreadable
from stores.secrets import BACKGROUND, derive
from tenants import selectors, services
from tenants.limits.holds import Idempotency
from tenants.models import BackgroundRequest
from tenants.services import NewBackground

PROMPT, ANSWER = "prompt", "answer"
_ANSWER = tuple[str, bytes, list[bytes] | None, dict[str, int]]  # epoch, final, frames, writers


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A row that has not ended, as the settler and a rebuild see it: without its prompt."""

    ticket: Ticket
    api_key_id: UUID
    state: KeptState
    key_digest: str
    body_digest: str
    wait_until_ms: int


class KeptInDatabase:
    """Any process may have one. `keys`: the first seals, all open."""

    def __init__(self, *, clock: Clock, keys: Sequence[bytes]) -> None:
        self._clock = clock
        self._keys = tuple(keys)

    async def accept(self, ticket: Ticket, *, idempotency: Idempotency | None, wait_ms: int) -> None:
        request_id = UUID(ticket.request_id)
        new = NewBackground(
            request_id=request_id,
            tenant_id=UUID(ticket.tenant_id),
            api_key_id=UUID(ticket.api_key_id),
            pool=ticket.pool,
            head=encode(without_body(ticket)),
            body=seal(ticket.body, key=self._keys[0], request_id=request_id, part=PROMPT),
            key_digest=idempotency.key_digest if idempotency else "",
            body_digest=idempotency.body_digest if idempotency else "",
            wait_until=_instant(ticket.admitted_at_ms + wait_ms),
        )
        await from_database(services.accept_background, new)

    async def mark_queued(self, ticket: Ticket) -> None:
        ids = {"tenant_id": UUID(ticket.tenant_id), "request_id": UUID(ticket.request_id)}
        await from_database(partial(services.mark_background_queued, **ids))

    async def find(self, *, tenant_id: str, request_id: str) -> Kept | None:
        try:
            tenant, wanted = UUID(tenant_id), UUID(request_id)
        except ValueError:
            return None  # no request of ours has such an id
        return await from_database(lambda: self._kept(selectors.background_request(tenant, request_id=wanted)))

    async def find_key(self, *, tenant_id: str, key_digest: str) -> Kept | None:
        ask = partial(selectors.background_request, UUID(tenant_id), key_digest=key_digest)
        return await from_database(lambda: self._kept(ask()))

    async def end(self, ticket: Ticket, answer: KeptAnswer) -> bool:
        request_id = UUID(ticket.request_id)
        packed = msgspec.msgpack.encode((answer.epoch, encode(answer.final), answer.frames, dict(answer.writers)))
        end = partial(
            services.end_background,
            tenant_id=UUID(ticket.tenant_id),
            request_id=request_id,
            answer=seal(packed, key=self._keys[0], request_id=request_id, part=ANSWER),
            at=_instant(self._clock.now_ms()),
        )
        return await from_database(end)

    async def open_requests(self, *, after: str, limit: int) -> list[OpenRequest]:
        """Those that have not ended, of all tenants, oldest first, after an id ("" = from the first)."""
        ask = partial(selectors.open_background, after=UUID(after) if after else None, limit=limit)
        return [_open(row) for row in await from_database(ask)]

    async def prompt(self, ticket: Ticket) -> Ticket | None:
        """The whole ticket again; None once it has ended. Raises Unreadable."""
        request_id = UUID(ticket.request_id)
        sealed = await from_database(selectors.prompt_of_background, request_id)
        if sealed is None:
            return None
        return replace(ticket, body=unseal(sealed, keys=self._keys, request_id=request_id, part=PROMPT))

    async def drop_unqueued(self, ticket: Ticket, *, older_than_ms: int) -> bool:
        """Forget one that was written long ago and never queued: its client was refused, or never answered."""
        before = _instant(self._clock.now_ms() - older_than_ms)
        drop = partial(services.drop_unqueued_background, request_id=UUID(ticket.request_id), before=before)
        return await from_database(drop)

    def _kept(self, row: BackgroundRequest | None) -> Kept | None:
        if row is None:
            return None
        try:
            return Kept(
                ticket=decode(Ticket, bytes(row.head)),
                state=KeptState(row.state),
                body_digest=row.body_digest,
                ended_at_ms=None if row.ended_at is None else int(row.ended_at.timestamp() * 1000),
                answer=None if row.answer is None else self._answer(row.id, bytes(row.answer)),
            )
        except (Unreadable, WireError, msgspec.MsgspecError) as error:
            raise Unavailable(f"request {row.id} cannot be read here", retry_after_ms=60_000) from error

    def _answer(self, request_id: UUID, sealed: bytes) -> KeptAnswer:
        packed = unseal(sealed, keys=self._keys, request_id=request_id, part=ANSWER)
        fields = msgspec.msgpack.decode(packed)
        whole = fields if len(fields) == 4 else [*fields, {}]  # the release before this one kept no writers
        epoch, final, frames, writers = msgspec.convert(whole, type=_ANSWER)
        return KeptAnswer(epoch=epoch, final=decode(Final, final), frames=frames, writers=writers)


def open_kept(*, clock: Clock, secret: str, old_secrets: Sequence[str]) -> KeptInDatabase:
    """With the keys of this installation's root secrets."""
    return KeptInDatabase(clock=clock, keys=[derive(one, BACKGROUND) for one in (secret, *old_secrets)])


def _open(row: BackgroundRequest) -> OpenRequest:
    return OpenRequest(
        ticket=decode(Ticket, bytes(row.head)),
        api_key_id=row.api_key_id,
        state=KeptState(row.state),
        key_digest=row.key_digest,
        body_digest=row.body_digest,
        wait_until_ms=int(row.wait_until.timestamp() * 1000),
    )


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)
