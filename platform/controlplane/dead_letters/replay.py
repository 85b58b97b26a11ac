"""Runs a dead letter once more, as a new request of the operator's own.

Called by the console's page. The rule: a replay is the operator's attempt, not the customer's. It has a new id and runs
under the platform's own account (the tenant HOUSE, made at the first replay): that account's limits hold it, its prices
are on its bill, and its tokens are in its usage. The customer's request stays as it ended, is billed nothing more, and
its audit trail says that it was replayed and by whom. The engine gets what it got: the same body, seed, salt and
guardrails. Invariants: it is in the audit trail before it is in the queue; nothing is queued without a hold; it waits
in the batch class, so that it takes no turn of a customer who waits.
"""

import asyncio
from dataclasses import replace
from uuid import UUID

from django.db import transaction
from redis.exceptions import RedisError

from billing.selectors import price_card
from contracts.clock import Clock
from contracts.errors import Conflict, PermissionDenied, Unavailable, WeirError
from contracts.jobs import Ticket
from contracts.tenancy import ServiceClass, TenantContext
from controlplane.dead_letters.reading import DeadLetter
from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from gateway.drafts import hold_of_ticket
from stores.redis import Client
from stores.system import mint_request_id
from tenants import events, selectors, services
from tenants.actors import Actor
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldExisting
from tenants.models import ApiKey, Plan, Project, Tenant

HOUSE = "Platform operator"
KEY_NAME = "Replays of dead letters"
STORE_SECONDS = 5.0
WAIT_MS = 600_000
HOLD_MS = 30_000


def prepare(letter: DeadLetter, *, actor: Actor, clock: Clock) -> tuple[Ticket, TenantContext]:
    """The replay's ticket and whose limits hold it; the audit entry is written. Blocking.

    Raises PermissionDenied when the platform's own account has no price for the model, or is suspended.
    """
    with transaction.atomic():
        key = _house_key(actor)
    context = selectors.load_context_of(str(key.id))
    if context is None or isinstance(context, PermissionDenied):
        raise PermissionDenied(f"The account {HOUSE} is suspended, or its key is over.")
    asked, now_ms = letter.ticket, clock.now_ms()
    price = price_card(tenant_id=context.tenant_id, model=asked.model, at_ms=now_ms, service_class=ServiceClass.BATCH)
    if price is None:
        raise PermissionDenied(f"The model {asked.model} has no price for the account {HOUSE}.")
    ticket = replace(
        asked,
        request_id=mint_request_id(),
        tenant_id=context.tenant_id,
        project_id=context.project_id,
        api_key_id=context.api_key_id,
        body=letter.body,
        price=price,
        service_class=ServiceClass.BATCH,
        admitted_at_ms=now_ms,
        edge_us=0,
        guard_us=0,
        evaluation_log=False,
        budget_cut=False,
        end_user_hash="",
        guard_prompt=(),
        background=False,
    )
    with transaction.atomic():
        events.record(
            "request.replayed",
            tenant_id=UUID(letter.tenant_id),
            subject=f"request:{letter.request_id}",
            actor=actor,
            after={"replay": ticket.request_id, "pool": letter.pool},
        )
    return ticket, context


async def run(ticket: Ticket, context: TenantContext, *, redis: Client, clock: Clock) -> None:
    """Hold and queue it. Raises contracts.errors.Rejected when limits or the queue refuse, or Redis is away."""
    limits, queue = Limits(redis, clock=clock), FairQueue(redis, ticket.pool, QueueBounds())
    deadline_ms = clock.now_ms() + HOLD_MS
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await limits.set_epochs(
                tenant_id=context.tenant_id,
                keys={context.api_key_id: context.key_epoch},
                tenant_epoch=context.tenant_epoch,
            )
            held = await limits.hold(hold_of_ticket(ticket, context, enqueue_deadline_ms=deadline_ms))
            if isinstance(held, HoldExisting):
                raise Conflict("This replay was here before.")
            await _enqueue(ticket, context, queue=queue, limits=limits, deadline_ms=deadline_ms)
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable("Redis does not answer: whether it was queued is not known; its timeline tells.") from error


async def _enqueue(
    ticket: Ticket, context: TenantContext, *, queue: FairQueue, limits: Limits, deadline_ms: int
) -> None:
    try:
        await queue.enqueue(
            ticket,
            mailbox="",
            enqueue_deadline_ms=deadline_ms,
            weight_milli=context.weight_milli,
            queued_max=context.queued_max,
            expires_at_ms=ticket.admitted_at_ms + WAIT_MS,
        )
    except WeirError:
        await limits.void(tenant_id=ticket.tenant_id, request_id=ticket.request_id, reason="not_replayed")
        raise


def _house_key(actor: Actor) -> ApiKey:
    """The platform's own account and its key; the key's text is thrown away, so nobody can use it from outside."""
    tenant = Tenant.objects.filter(name=HOUSE, closed_at=None).first()
    if tenant is None:
        plan = Plan.objects.filter(name=HOUSE).first() or services.create_plan(name=HOUSE, actor=actor)
        tenant = services.create_tenant(name=HOUSE, plan=plan, actor=actor)
    find = {"tenant": tenant, "name": "Replays", "deleted_at": None}
    project = Project.objects.filter(**find).first()
    if project is None:
        project = services.create_project(tenant=tenant, name="Replays", actor=actor)
    key = ApiKey.objects.filter(project=project, name=KEY_NAME, revoked_at=None, expired_at=None).first()
    if key is None:
        key, _ = services.create_key(project=project, name=KEY_NAME, actor=actor)
    return key
