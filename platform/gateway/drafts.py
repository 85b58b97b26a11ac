"""A request between its check and its ticket: model found, tokens counted, price chosen. Pure; for `admission.py`.

Invariant: what was counted, held and guarded is what the ticket carries.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import orjson

from billing.rating.rate import worst_case
from contracts.errors import InvalidRequest, LimitExceeded
from contracts.jobs import Endpoint, Ticket
from contracts.models import ModelCard
from contracts.money import PriceCard
from contracts.tenancy import ServiceClass, TenantContext
from gateway.prompts import PromptContent
from gateway.surface.messages import flatten
from gateway.surface.schema import Asked
from gateway.tokenizer import PromptTokenizer, TemplateRefused, characters_of
from tenants.limits.holds import HoldRequest, Idempotency
from tenants.limits.policy import counted, max_tokens_limit
from tenants.limits.refusal import blocked, too_many

COMPLETION_TOKENS_DEFAULT = 16  # OpenAI's and vLLM's, of /v1/completions


def hold_of_ticket(
    ticket: Ticket, context: TenantContext, *, enqueue_deadline_ms: int, idempotency: Idempotency | None = None
) -> HoldRequest:
    """The worst case of a request that was admitted before, in the limits of its key as they are now."""
    output_tokens_max = ticket.max_tokens * ticket.choices
    return HoldRequest(
        request_id=ticket.request_id,
        tenant_id=ticket.tenant_id,
        project_id=ticket.project_id,
        api_key_id=ticket.api_key_id,
        key_epoch=context.key_epoch,
        tenant_epoch=context.tenant_epoch,
        limits=counted(context.limits, model=ticket.model),
        prompt_tokens=ticket.prompt_tokens,
        output_tokens_max=output_tokens_max,
        cost_max_nano=worst_case(ticket.price, prompt_tokens=ticket.prompt_tokens, output_tokens_max=output_tokens_max),
        currency=context.currency,
        timezone=context.timezone,
        enqueue_deadline_ms=enqueue_deadline_ms,
        pool=ticket.pool,
        idempotency=idempotency,
        choices=ticket.choices,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """`received_at` is monotonic: the last byte of the request. Times in microseconds are durations."""

    request_id: str
    context: TenantContext
    asked: Asked
    card: ModelCard
    tokenizer: PromptTokenizer
    content: PromptContent
    prompt_tokens: int
    max_tokens: int
    price: PriceCard
    idempotency: Idempotency | None
    received_at: float
    service_class: ServiceClass
    guard_us: int = 0
    verdicts: tuple[str, ...] = ()

    def hold_request(self, *, enqueue_deadline_ms: int) -> HoldRequest:
        """The worst case of this request, to be held in every limit of key, project and tenant."""
        context, output_tokens_max = self.context, self.max_tokens * self.asked.choices
        return HoldRequest(
            request_id=self.request_id,
            tenant_id=context.tenant_id,
            project_id=context.project_id,
            api_key_id=context.api_key_id,
            key_epoch=context.key_epoch,
            tenant_epoch=context.tenant_epoch,
            limits=counted(context.limits, model=self.card.model),
            prompt_tokens=self.prompt_tokens,
            output_tokens_max=output_tokens_max,
            cost_max_nano=worst_case(self.price, prompt_tokens=self.prompt_tokens, output_tokens_max=output_tokens_max),
            currency=context.currency,
            timezone=context.timezone,
            enqueue_deadline_ms=enqueue_deadline_ms,
            pool=self.card.pool,
            idempotency=self.idempotency,
            cut_to_affordable=context.cut_to_affordable,
            output_nano_per_token=self.price.output_nano,
            choices=self.asked.choices,
        )

    def ticket(self, *, cache_salt: str, admitted_at_ms: int, edge_us: int, cut: bool, end_user_hash: str) -> Ticket:
        """What travels through the queue."""
        context = self.context
        return Ticket(
            request_id=self.request_id,
            tenant_id=context.tenant_id,
            project_id=context.project_id,
            api_key_id=context.api_key_id,
            pool=self.card.pool,
            model=self.card.model,
            endpoint=self.asked.endpoint,
            body=orjson.dumps(self._engine_body()),
            stream=self.asked.stream,
            include_usage=self.asked.include_usage,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            choices=self.asked.choices,
            cache_salt=cache_salt,
            price=self.price,
            policy=context.policy,
            service_class=self.service_class,
            admitted_at_ms=admitted_at_ms,
            edge_us=edge_us,
            guard_us=self.guard_us,
            evaluation_log=context.evaluation_log,
            budget_cut=cut,
            end_user_hash=end_user_hash,
            guard_prompt=self.verdicts,
            background=self.asked.background,
        )

    def _engine_body(self) -> dict[str, Any]:
        body: dict[str, Any] = {**self.asked.sampling, "max_tokens": self.max_tokens}
        if self.asked.choices > 1:
            body["n"] = self.asked.choices
        if self.asked.endpoint is Endpoint.COMPLETIONS:
            body["prompt"] = self.content.token_ids or self.content.text
            return body
        body["messages"] = self.content.messages
        if self.content.tools:
            body["tools"] = [_without_nulls(tool) for tool in self.content.tools]
        return body


def _without_nulls(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {key: value for key, value in tool["function"].items() if value is not None}}


def content_of(asked: Asked, tokenizer: PromptTokenizer, *, calls_tools: bool = True) -> PromptContent:
    """The prompt in the one form that is guarded, counted and sent: parts are flattened where the template wants it.

    Raises InvalidRequest for tools that the model would never see, or whose calls its engine would not make out.
    """
    if asked.tools and asked.sampling.get("tool_choice") != "none" and not tokenizer.shows_tools:
        raise InvalidRequest(
            "tools: this model's chat template shows it no tools", param="tools", code="unsupported_value"
        )
    if asked.tools and asked.sampling.get("tool_choice") != "none" and not calls_tools:
        param = "tool_choice" if asked.sampling.get("tool_choice") is not None else "tools"
        message = f"{param}: this model calls no tools here; its engine has no parser for them"
        raise InvalidRequest(message, param=param, code="unsupported_value")
    token_ids = asked.prompt if isinstance(asked.prompt, list) else []
    return PromptContent(
        messages=flatten(asked.messages) if tokenizer.parts_as_text else asked.messages,
        tools=asked.tools,
        text=tokenizer.decode(token_ids) if token_ids else str(asked.prompt or ""),
        token_ids=token_ids,
    )


def refuse_hopeless(asked: Asked, tokenizer: PromptTokenizer, *, context_tokens: int) -> None:
    """Refuses a prompt that cannot fit whatever its tokens are, before any work is spent on it."""
    if isinstance(asked.prompt, list):
        fits = len(asked.prompt) < context_tokens
    else:
        characters = len(asked.prompt) + characters_of(asked.messages)
        fits = characters < context_tokens * tokenizer.longest_token
    if not fits:
        raise InvalidRequest(
            f"the prompt is longer than the model's context of {context_tokens} tokens",
            param="messages" if asked.endpoint is Endpoint.CHAT else "prompt",
            code="context_length_exceeded",
        )


def output_tokens(asked: Asked, context: TenantContext, *, model: str, context_tokens: int, prompt_tokens: int) -> int:
    """max_tokens of one choice, asked for or by default: the plan's, within the context, the plan's cap and the limits.

    Raises InvalidRequest when prompt or answer do not fit, LimitExceeded where a limit of 0 blocks.
    """
    room = context_tokens - prompt_tokens
    prompt_field = "messages" if asked.endpoint is Endpoint.CHAT else "prompt"
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {prompt_tokens} tokens; the model's context is {context_tokens}, and one must be left",
            param=prompt_field,
            code="context_length_exceeded",
        )
    limit = max_tokens_limit(context.limits, model=model)
    if limit is not None and limit.cap == 0:
        raise LimitExceeded(blocked(limit))
    caps = [room, context.max_tokens_cap, None if limit is None else limit.cap]
    cap = min(most for most in caps if most is not None)
    default = context.max_tokens_default
    if asked.endpoint is Endpoint.COMPLETIONS:
        default = min(default, COMPLETION_TOKENS_DEFAULT)
    granted = min(cap, default) if asked.max_tokens is None else asked.max_tokens
    if granted > room:
        raise InvalidRequest(
            f"max_tokens {granted} and the prompt's {prompt_tokens} tokens pass the context of {context_tokens}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if granted > cap or granted < 1:
        if limit is not None and limit.cap == cap:
            message = too_many(limit, asked=granted)
        else:
            message = _past_plan(asked.max_tokens, cap)
        raise InvalidRequest(f"max_tokens: {message}", param="max_tokens", code="max_tokens_cap")
    if asked.sampling.get("min_tokens", 0) > granted:
        raise InvalidRequest(f"min_tokens: must be at most max_tokens ({granted})", param="min_tokens")
    return granted


def _past_plan(max_tokens: int | None, cap: int) -> str:
    """What the plan's cap says, also to a request that names no max_tokens, where it is 0."""
    asked = "" if max_tokens is None else f"{max_tokens} asked for, and "
    return (
        f"{asked}the plan of the organization allows {cap}; only an operator raises it, "
        "as `max_tokens_cap` at /api/v1/plans of the management API, or under Plans in the console"
    )


async def count_tokens(tokenizer: PromptTokenizer, content: PromptContent, asked: Asked) -> int:
    """Exact tokens of a prompt. Raises InvalidRequest when the model's template refuses it, or it is empty."""
    if asked.endpoint is Endpoint.CHAT:
        effort = asked.sampling.get("reasoning_effort")
        try:
            return await tokenizer.count_chat(content.messages, content.tools, reasoning_effort=effort)
        except TemplateRefused as error:
            raise InvalidRequest(f"messages: {error}", param="messages", code="template_refused") from error
    tokens = len(content.token_ids) or await tokenizer.count_text(content.text)
    if tokens == 0:
        raise InvalidRequest("prompt: must not be empty", param="prompt")
    return tokens


def hash_end_user(secret: bytes, *, tenant_id: str, user: str) -> str:
    """The end user's id as it is kept: keyed, per tenant, 128 bits. Empty stays empty."""
    if not user:
        return ""
    return hmac.new(secret, f"end-user\0{tenant_id}\0{user}".encode(), hashlib.sha256).hexdigest()[:32]
