"""POST /v1/moderations without HTTP: texts judged by the tenant's own guardrails. Called by `edge/moderations.py`.

Steps 2 to 4 of a request that goes no further. Invariants: it counts as one request in every limit, holds no tokens
and no money, and is settled before it is answered; a rule that could not run never passes for one that found nothing.
"""

import asyncio
from dataclasses import dataclass

from contracts.errors import InvalidRequest, Unavailable
from contracts.outcomes import Outcome
from contracts.tenancy import TenantContext
from contracts.tokens import TokenCounts
from gateway.admission import Admission, Caller
from gateway.services import GatewayServices
from safety.guard import judge_text
from safety.policy import CompiledPolicy
from safety.verdicts import RuleState, Stage, Verdict
from tenants.limits.holds import EpochUnknown, HoldHint, HoldRequest
from tenants.limits.policy import counted

STORE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One text: for each kind of rule that the policy has for prompts, whether one found something."""

    categories: dict[str, bool]

    @property
    def flagged(self) -> bool:
        return any(self.categories.values())


async def moderate(
    caller: Caller, texts: list[str], *, request_id: str, services: GatewayServices, admission: Admission
) -> list[Judged]:
    """Each text judged alone. Raises Rejected; nothing stays held."""
    context = await _count(caller, request_id, services=services, admission=admission)
    policy = await _policy(context, services)
    return [await _judge(policy, text, services) for text in texts]


async def _count(caller: Caller, request_id: str, *, services: GatewayServices, admission: Admission) -> TenantContext:
    """Step 3, LIMITS: held and settled at once, for there is nothing to wait for."""
    context = caller.context
    async with asyncio.timeout(STORE_SECONDS):
        try:
            await services.limits.hold(_hold(context, request_id, services))
        except EpochUnknown:
            context = await admission.reload(caller)
            try:
                await services.limits.hold(_hold(context, request_id, services))
            except EpochUnknown as error:
                raise _unavailable("this API key cannot be checked at the moment", services) from error
        hint = HoldHint(
            project_id=context.project_id, api_key_id=context.api_key_id, admitted_at_ms=services.clock.now_ms()
        )
        await services.limits.settle(
            tenant_id=context.tenant_id,
            request_id=request_id,
            counts=TokenCounts(prompt=0, completion=0),
            cost_nano=0,
            outcome=Outcome.OK.value,
            hint=hint,
        )
    return context


def _hold(context: TenantContext, request_id: str, services: GatewayServices) -> HoldRequest:
    return HoldRequest(
        request_id=request_id,
        tenant_id=context.tenant_id,
        project_id=context.project_id,
        api_key_id=context.api_key_id,
        key_epoch=context.key_epoch,
        tenant_epoch=context.tenant_epoch,
        limits=counted(context.limits, model=""),
        prompt_tokens=0,
        output_tokens_max=0,
        cost_max_nano=0,
        currency=context.currency,
        timezone=context.timezone,
        enqueue_deadline_ms=services.clock.now_ms() + int(STORE_SECONDS * 1000),
    )


async def _policy(context: TenantContext, services: GatewayServices) -> CompiledPolicy:
    """Raises InvalidRequest where nothing would judge: an answer would say that it did."""
    if context.policy is not None:
        async with asyncio.timeout(STORE_SECONDS):
            policy = await services.policies.get(context.policy)
        if policy.judges(Stage.PROMPT):
            return policy
    raise InvalidRequest("no guardrail policy judges your prompts, so none can judge this text", code="no_policy")


async def _judge(policy: CompiledPolicy, text: str, services: GatewayServices) -> Judged:
    """A rule in shadow is not asked of: it counts for its operator only."""
    said = await judge_text(policy, text, pool=services.validators, monotonic=services.clock.monotonic)
    kinds = {rule.name: rule.kind for rule in policy.rules if rule.intended is None}
    categories: dict[str, bool] = {}
    for verdict in said:
        if verdict.rule in kinds:
            kind = kinds[verdict.rule]
            categories[kind] = _found(verdict, services) or categories.get(kind, False)
    return Judged(categories)


def _found(verdict: Verdict, services: GatewayServices) -> bool:
    """Raises Unavailable for a rule that could not run and fails closed; one that fails open found nothing."""
    if verdict.state is not RuleState.RAN and verdict.acted:
        raise _unavailable("a guardrail rule cannot judge at the moment", services)
    return verdict.hits > 0


def _unavailable(message: str, services: GatewayServices) -> Unavailable:
    return Unavailable(message, retry_after_ms=services.settings.unavailable_retry_ms)
