"""Steps 2-5, AUTH to QUEUE: `Admission.admit` is the table of contents of the hot path. Read it first.

Called by `edge/inference.py` and `realtime/`. Invariants: nothing is queued without a hold, and a hold whose
request was refused is voided here (what a crash leaves, the settler voids); the model that is allowed is the model that
runs; money and rate checks fail closed when a store does not answer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from contracts.errors import (
    Conflict,
    DeadlinePassed,
    InvalidRequest,
    PermissionDenied,
    PromptBlocked,
    Rejected,
    Unavailable,
    Unprocessable,
    WeirError,
)
from contracts.jobs import Ticket
from contracts.money import PriceCard
from contracts.outcomes import JobState
from contracts.tenancy import ServiceClass, TenantContext
from contracts.text import shown
from fairqueue.keys import mailbox_channel
from fairqueue.messages import Enqueued, JobStatus
from fairqueue.queue import FairQueue
from gateway.clients import require_network
from gateway.drafts import Draft, content_of, count_tokens, hash_end_user, output_tokens, refuse_hopeless
from gateway.services import GatewayServices, ServedModel
from gateway.stream.mailbox import Inbox
from gateway.surface.schema import Asked, check_vocabulary
from safety.guard import check_prompt_with
from safety.verdicts import Stage
from stores.secrets import cache_salt
from stores.system import mint_request_id
from tenants.limits.holds import EpochUnknown, Headroom, HoldExisting, HoldGranted, HoldState, Idempotency
from tenants.limits.policy import counted, is_rate
from tenants.limits.refusal import rooms

log = logging.getLogger("weir.gateway.admission")

TURNS = 32  # requests between their prompt and their hold at the same time; the others wait for their turn
STORE_SECONDS = 5.0
VOID_SECONDS = 2.0
ROOM_SECONDS = 0.5
INFERENCE_SCOPE = "inference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as step 2 found it."""

    bearer: str
    address: str
    context: TenantContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """An accepted request and the inbox where its frames arrive. `attached`: it was here before (Idempotency-Key)."""

    ticket: Ticket
    queue: FairQueue
    inbox: Inbox
    generation: int
    position: int
    attached: bool
    requests: Headroom | None = None
    tokens: Headroom | None = None


@dataclass(slots=True)
class _Held:
    """The hold that must not be left behind. `undecided`: the queue may have it, so only the settler may void."""

    tenant_id: str
    request_id: str
    undecided: bool = False


class Admission:
    """Steps 2-5 over the ports of `GatewayServices`."""

    def __init__(self, services: GatewayServices) -> None:
        self._services = services
        self._turns = asyncio.Semaphore(TURNS)

    async def identify(self, bearer: str, *, address: str) -> Caller:
        """Step 2, AUTH: before the body is read. Raises AuthFailed, PermissionDenied, Unavailable.

        `address` is the client's, as `gateway.clients` found it: a key may be bound to networks.

        Management keys are apart from inference keys: one that leaks from a model's client administers nothing, and
        one that administers runs up no bill.
        """
        async with self._answers_in_time():
            context = await self._services.resolver.resolve(bearer)
        _allow_caller(context, address=address)
        return Caller(bearer=bearer, address=address, context=context)

    async def require_model(self, context: TenantContext, model: str) -> None:
        """That this caller may ask for the model. Raises NotFound, PermissionDenied, Unavailable."""
        await self._served(context, model)

    async def room(self, context: TenantContext, *, model: str = "") -> tuple[Headroom | None, Headroom | None]:
        """What requests and tokens are left, as the rate headers say it; (None, None) where that is not known now.

        `model`: the one that is asked about; its own limits count as well.
        """
        limits = tuple(limit for limit in counted(context.limits, model=model) if is_rate(limit))
        if not limits:
            return None, None
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                uses = await self._services.limits.usage(
                    tenant_id=context.tenant_id,
                    project_id=context.project_id,
                    api_key_id=context.api_key_id,
                    limits=limits,
                    timezone=context.timezone,
                )
        except (Unavailable, TimeoutError):
            return None, None
        return rooms(uses)

    async def admit(
        self,
        caller: Caller,
        asked: Asked,
        *,
        request_id: str,
        idempotency: Idempotency | None,
        received_at: float,
    ) -> Admitted:
        """Steps 3-5. `received_at`: monotonic, the last byte. Raises contracts.errors.Rejected; nothing stays held."""
        if self._services.mailbox.open_inboxes >= self._services.settings.streams_max:
            raise self._unavailable("this gateway has as many open requests as it takes")
        async with self._turn():
            draft = await self._draft(caller.context, asked, request_id, idempotency, received_at)
            async with self._services.limits.gate.watch():  # one breaker over every look at Redis before the hold
                await self._services.workers.require(draft.card.pool)
            draft, hold = await self._hold(caller, draft)
        if isinstance(hold, HoldExisting):
            return await self._attach(draft, hold)
        held = _Held(caller.context.tenant_id, draft.request_id)
        async with self._voided_when_refused(held):
            guarded = await self._guard(draft)
            if guarded.prompt_tokens > draft.prompt_tokens:
                guarded, hold = await self._hold_again(caller, guarded, held)
            return await self._enqueue(guarded, hold, held)

    async def _draft(
        self,
        context: TenantContext,
        asked: Asked,
        request_id: str,
        idempotency: Idempotency | None,
        received_at: float,
    ) -> Draft:
        """The resolved model, the exact prompt tokens within its context, and the prices in force."""
        served = await self._served(context, asked.model)
        service_class = self._class_of(context, asked)
        async with self._answers_in_time():
            price = await self._price(context, served.card.model, service_class)
        refuse_hopeless(asked, served.tokenizer, context_tokens=served.card.context_tokens)
        check_vocabulary(asked, vocabulary=min(served.card.vocabulary, served.tokenizer.vocabulary))
        content = content_of(asked, served.tokenizer, calls_tools=served.card.tools)
        prompt_tokens = await count_tokens(served.tokenizer, content, asked)
        return Draft(
            request_id=request_id,
            context=context,
            asked=asked,
            card=served.card,
            tokenizer=served.tokenizer,
            content=content,
            prompt_tokens=prompt_tokens,
            max_tokens=output_tokens(
                asked,
                context,
                model=served.card.model,
                context_tokens=served.card.context_tokens,
                prompt_tokens=prompt_tokens,
            ),
            price=price,
            idempotency=idempotency,
            received_at=received_at,
            service_class=service_class,
        )

    def _class_of(self, context: TenantContext, asked: Asked) -> ServiceClass:
        """What a request is queued, priced and billed as: by plan, route and the operator's word, not by its client."""
        if context.service_class is ServiceClass.BATCH or not asked.background:
            return context.service_class
        return self._services.settings.background_class

    async def _served(self, context: TenantContext, model: str) -> ServedModel:
        _allow(context, model)
        async with self._answers_in_time():
            served = await self._services.catalogue.get(model)
        _allow(context, served.card.model)  # an alias never widens what a key may use
        return served

    async def _price(self, context: TenantContext, model: str, service_class: ServiceClass) -> PriceCard:
        prices = self._services.prices
        price = await prices.card(tenant_id=context.tenant_id, model=model, service_class=service_class)
        if price is None:
            raise PermissionDenied("this model has no price for you", param="model", code="model_not_priced")
        return price

    async def _hold(self, caller: Caller, draft: Draft) -> tuple[Draft, HoldGranted | HoldExisting]:
        """Step 3, LIMITS: all limits or none. Epochs that Redis lost, or has newer, are read from PostgreSQL once."""
        deadline_ms = self._services.clock.now_ms() + int(self._services.settings.hold_enqueue_seconds * 1000)
        async with self._answers_in_time():
            try:
                return draft, await self._services.limits.hold(draft.hold_request(enqueue_deadline_ms=deadline_ms))
            except EpochUnknown:
                fresh = await self._renewed(draft, caller)
        async with self._answers_in_time():
            try:
                return fresh, await self._services.limits.hold(fresh.hold_request(enqueue_deadline_ms=deadline_ms))
            except EpochUnknown as error:
                raise self._unavailable("this API key cannot be checked at the moment") from error

    async def _renewed(self, draft: Draft, caller: Caller) -> Draft:
        """What was decided by a context that was out of date is decided anew. The prompt stays, redacted or not."""
        context = await self.reload(caller)
        _allow(context, draft.asked.model)
        _allow(context, draft.card.model)
        max_tokens = output_tokens(
            draft.asked,
            context,
            model=draft.card.model,
            context_tokens=draft.card.context_tokens,
            prompt_tokens=draft.prompt_tokens,
        )
        price = await self._price(context, draft.card.model, draft.service_class)
        return replace(draft, context=context, max_tokens=max_tokens, price=price)

    async def reload(self, caller: Caller) -> TenantContext:
        """The caller's context and epochs from PostgreSQL. Raises what `identify` does."""
        context = await self._services.resolver.reload(caller.bearer)
        await self._services.refresh_epochs(context.tenant_id)
        _allow_caller(context, address=caller.address)
        return context

    async def _hold_again(self, caller: Caller, grown: Draft, held: _Held) -> tuple[Draft, HoldGranted]:
        """A redaction made the prompt longer than what was held: the old hold is given back, a new one is taken."""
        if grown.prompt_tokens + grown.max_tokens > grown.card.context_tokens:
            raise InvalidRequest("the prompt no longer fits after redaction", code="context_length_exceeded")
        await self._services.limits.void(tenant_id=held.tenant_id, request_id=held.request_id, reason="redacted")
        fresh, hold = await self._hold(caller, replace(grown, request_id=mint_request_id()))
        if isinstance(hold, HoldExisting):
            raise Conflict("this Idempotency-Key came again at the same time; try again", retry_after_ms=1_000)
        held.request_id = fresh.request_id
        return fresh, hold

    async def _guard(self, draft: Draft) -> Draft:
        """Step 4, GUARDRAIL. Raises PromptBlocked, Unavailable when the policy cannot be loaded (fails closed)."""
        if draft.context.policy is None:
            return draft
        clock = self._services.clock
        begun = clock.monotonic()
        async with self._answers_in_time():
            policy = await self._services.policies.get(draft.context.policy)
        if draft.asked.sampling.get("logprobs") not in (None, False) and policy.judges(Stage.OUTPUT):
            raise InvalidRequest(
                "logprobs: not available under your output guardrails, whose hidden text they would spell out",
                param="logprobs",
                code="unsupported_value",
            )
        verdict = await check_prompt_with(
            policy, draft.content.texts(), pool=self._services.validators, monotonic=clock.monotonic
        )
        spent_us = int((clock.monotonic() - begun) * 1_000_000)
        if verdict.blocked:
            raise PromptBlocked("The prompt was refused by a guardrail policy.")
        guarded = replace(draft, guard_us=spent_us, verdicts=verdict.verdicts)
        if verdict.redacted_texts is None:
            return guarded
        content = draft.content.with_texts(verdict.redacted_texts)
        tokens = await count_tokens(draft.tokenizer, content, draft.asked)
        return replace(guarded, content=content, prompt_tokens=tokens)

    async def _enqueue(self, draft: Draft, hold: HoldGranted, held: _Held) -> Admitted:
        """Step 5, QUEUE. Raises QueueFull, DeadlinePassed, Unavailable."""
        granted = replace(draft, max_tokens=hold.output_tokens // draft.asked.choices)
        ticket = self._ticket(granted, admitted_at_ms=hold.admitted_at_ms, cut=hold.cut)
        queue = self._services.queue_of(ticket.pool)
        with self._listening(ticket) as inbox:
            try:
                await self._keep(draft, ticket)
                enqueued = await self._offer(queue, ticket, draft.context, deadline_ms=hold.hold_deadline_ms)
            except (RedisError, OSError, TimeoutError) as error:
                held.undecided = True
                if draft.idempotency is None:  # else the client's retry finds it and attaches
                    await self._tombstone(queue, ticket.request_id)
                raise self._unavailable("the queue did not answer") from error
        return Admitted(
            ticket=ticket,
            queue=queue,
            inbox=inbox,
            generation=enqueued.generation,
            position=enqueued.position,
            attached=enqueued.already,
            requests=hold.requests,
            tokens=hold.tokens,
        )

    async def _keep(self, draft: Draft, ticket: Ticket) -> None:
        """A background request is written down before it is queued. Raises Unavailable: then it is not accepted."""
        if ticket.background:
            assert self._services.kept is not None, "the edge refuses background where nothing keeps it"
            await self._services.kept.accept(ticket, idempotency=draft.idempotency, wait_ms=self._wait_ms(ticket))

    def _wait_ms(self, ticket: Ticket) -> int:
        settings = self._services.settings
        return int((settings.background_wait_seconds if ticket.background else settings.queue_wait_seconds) * 1000)

    async def _offer(self, queue: FairQueue, ticket: Ticket, context: TenantContext, *, deadline_ms: int) -> Enqueued:
        async with asyncio.timeout(STORE_SECONDS):
            return await queue.enqueue(
                ticket,
                mailbox="" if ticket.background else mailbox_channel(self._services.gateway_id),
                enqueue_deadline_ms=deadline_ms,
                weight_milli=context.weight_milli,
                queued_max=context.queued_max,
                expires_at_ms=ticket.admitted_at_ms + self._wait_ms(ticket),
            )

    async def _attach(self, draft: Draft, hold: HoldExisting) -> Admitted:
        """A repeated Idempotency-Key joins the request it names: running, ended, or left unqueued by a crash."""
        if not hold.body_matches:
            raise Unprocessable(
                "this Idempotency-Key was used with another body", param="Idempotency-Key", code="idempotency_mismatch"
            )
        same = replace(draft, request_id=hold.request_id)
        ticket = self._ticket(same, admitted_at_ms=hold.admitted_at_ms, cut=False)
        queue = self._services.queue_of(ticket.pool)
        with self._listening(ticket) as inbox:
            async with self._answers_in_time():
                status = await queue.status(request_id=ticket.request_id)
            if status is not None:
                ticket, deadline_ms = status.ticket, 1  # its body stays in the pool: attach, never queue it anew
                await self._require_log(queue, status)
            elif hold.state is HoldState.SETTLED:
                raise _no_longer_kept(ticket.request_id)
            else:
                ticket = await self._left_unqueued(same, hold)
                await self._keep(draft, ticket)
                wait_ms = int(self._services.settings.hold_enqueue_seconds * 1000)
                deadline_ms = self._services.clock.now_ms() + wait_ms
            try:
                async with self._answers_in_time():
                    enqueued = await self._offer(queue, ticket, draft.context, deadline_ms=deadline_ms)
            except DeadlinePassed as error:
                raise Conflict(
                    f"request {hold.request_id} with this Idempotency-Key was given up; try again", retry_after_ms=1_000
                ) from error
        return Admitted(
            ticket=ticket,
            queue=queue,
            inbox=inbox,
            generation=enqueued.generation,
            position=enqueued.position,
            attached=True,
        )

    @contextmanager
    def _listening(self, ticket: Ticket) -> Iterator[Inbox]:
        """An inbox for the request, let go again when nobody will read it after all."""
        inbox = self._services.mailbox.open(ticket.request_id)
        try:
            self._services.running.note(inbox, ticket)
            yield inbox
        except BaseException:
            self._services.mailbox.close(inbox)
            raise

    async def _left_unqueued(self, draft: Draft, hold: HoldExisting) -> Ticket:
        """What a crash, or a twin still under way, has not queued yet: guarded as the first was, within what it holds.

        Raises what `_guard` does. Conflict when the redacted prompt is longer than what is held.
        """
        guarded = await self._guard(draft)
        if guarded.prompt_tokens > draft.prompt_tokens or hold.output_tokens < draft.asked.choices:
            raise Conflict("this Idempotency-Key came again at the same time; try again", retry_after_ms=1_000)
        within = replace(guarded, max_tokens=hold.output_tokens // draft.asked.choices)
        return self._ticket(within, admitted_at_ms=hold.admitted_at_ms, cut=hold.cut)

    async def _require_log(self, queue: FairQueue, status: JobStatus) -> None:
        """The frames of an ended request are dropped before the request itself: then there is nothing to replay."""
        if status.state is not JobState.SETTLED or status.last_seq == 0:
            return
        async with self._answers_in_time():
            piece = await queue.read_log(request_id=status.request_id, after_seq=0, limit=1)
        if piece is None or not piece.frames:
            raise _no_longer_kept(status.request_id)

    def _ticket(self, draft: Draft, *, admitted_at_ms: int, cut: bool) -> Ticket:
        services, tenant_id = self._services, draft.context.tenant_id
        return draft.ticket(
            cache_salt=cache_salt(services.cache_salt_secret, tenant_id=tenant_id),
            admitted_at_ms=admitted_at_ms,
            edge_us=int((services.clock.monotonic() - draft.received_at) * 1_000_000),
            cut=cut,
            end_user_hash=hash_end_user(services.cache_salt_secret, tenant_id=tenant_id, user=draft.asked.end_user),
        )

    @asynccontextmanager
    async def _voided_when_refused(self, held: _Held) -> AsyncIterator[None]:
        """Gives the hold back when guard or queue refuse. What this cannot reach, the settler finds by its deadline."""
        try:
            yield
        except Exception as error:
            if not held.undecided:
                reason = error.code if isinstance(error, WeirError) else "internal_error"
                with suppress(RedisError, OSError, TimeoutError):
                    async with asyncio.timeout(VOID_SECONDS):
                        await self._services.limits.void(
                            tenant_id=held.tenant_id, request_id=held.request_id, reason=reason
                        )
            raise

    async def _tombstone(self, queue: FairQueue, request_id: str) -> None:
        """The enqueue's reply was lost: whether it is queued or not, it shall not run for nobody."""
        try:
            async with asyncio.timeout(VOID_SECONDS):
                await queue.cancel(request_id=request_id, generation=None, reason="cancelled")
        except (RedisError, OSError, TimeoutError):
            log.warning("request %s: neither queued nor cancelled for sure; its deadline decides", request_id)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """First come, first served. Side by side, a thousand would wait for the loop until every store seemed slow."""
        try:
            async with asyncio.timeout(self._services.settings.admission_seconds):
                await self._turns.acquire()
        except TimeoutError as error:
            raise self._unavailable("this gateway has more to admit than it can") from error
        try:
            yield
        finally:
            self._turns.release()

    @asynccontextmanager
    async def _answers_in_time(self) -> AsyncIterator[None]:
        """A store that is slow or away is 503 with Retry-After, never a hang and never a free pass."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                yield
        except (RedisError, OSError, TimeoutError) as error:
            raise self._unavailable("a store does not answer at the moment") from error

    def _unavailable(self, message: str) -> Unavailable:
        return Unavailable(message, retry_after_ms=self._services.settings.unavailable_retry_ms)


def _allow_caller(context: TenantContext, *, address: str) -> None:
    if INFERENCE_SCOPE not in context.scopes:
        raise PermissionDenied(
            f"This API key has no `{INFERENCE_SCOPE}` scope; create one that has it.", code="insufficient_scope"
        )
    require_network(context, address=address)


def _allow(context: TenantContext, model: str) -> None:
    if context.allowed_models is not None and model not in context.allowed_models:
        raise PermissionDenied(
            f"this API key may not use the model {shown(model)}", param="model", code="model_not_allowed"
        )


def _no_longer_kept(request_id: str) -> Rejected:
    return Conflict(
        f"request {request_id} with this Idempotency-Key has ended and its answer is no longer kept; "
        f"see GET /v1/requests/{request_id}",
        code="idempotency_expired",
    )
