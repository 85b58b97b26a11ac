"""Going on with a request at another engine: what may, and with what the next attempt begins. Called by `attempt`.

A model's next token depends on the tokens before it. So a request whose released tokens are known goes on from them:
prompt and released ids are the prompt of a plain completion, and its text follows what the client has. Invariants: only
a request that is *plain* keeps ids, and plain is what this module lists, not what it does not know; nothing is sent on
unless the ids say exactly what was released.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
import structlog
from redis.exceptions import RedisError

from contracts.jobs import Claim, Endpoint, Ticket
from contracts.tokens import TokenCounts
from fairqueue.messages import LogSlice
from workers.engines.base import EngineAdapter, EngineChunk, EngineRequest, Replaying
from workers.ports import TELL_PAUSES
from workers.verdict import GivenBack

LOG_PAGE_FRAMES = 1024
CONTEXT_IDS = 16  # of the prompt: a tokenizer may write the first token of a text in another way than a later one
CUT_IDS_MAX = 4  # a character outside ASCII has four bytes at most
CUT_CHARACTER = "\ufffd"
_WHOLE = frozenset({"stop", "length"})

# What makes a next token depend on more than the tokens before it, or the text on more than the tokens, is not here:
# choices, tools, grammars, logprobs, penalties, stop strings, forbidden words, a least length, a seed.
_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids", "stop_token_ids", "ignore_eos"}
)
_CARRIED = frozenset({"messages", "prompt", "max_tokens", "max_completion_tokens", "user"})
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stop": ([], ""),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_tokens": (0,),
    "bad_words": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "echo": (False,),
}

log = structlog.get_logger(__name__)


class CannotContinue(Exception):
    """What was released cannot be gone on from; the text says why."""


class ReleasedQueue(Protocol):
    """The part of `fairqueue.queue.FairQueue` that is used here."""

    async def read_log(self, *, request_id: str, after_seq: int, limit: int) -> LogSlice | None: ...

    async def read_ids(self, *, request_id: str, fence: str) -> list[int] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What earlier attempts released: `shown` to the client, and the `ids` that it was made of.

    `text` is what those ids say, before any guard; it is known once an engine was asked. `finish_reason` is set where
    the answer had come to its end and only its worker had not. `is_cut`: the last of the ids that the pool keeps were
    a part of a character; they are not in `ids`.
    """

    ids: list[int]
    shown: str
    finish_reason: str
    text: str = ""
    is_cut: bool = False


def engine_id(claim: Claim) -> str:
    """The engine's name for an attempt. The fence is in it: of a request that its queue had lost, the attempt counted
    as first may come while the engine still aborts the one that was first before."""
    return f"{claim.ticket.request_id}-{claim.fence}"


def is_plain(ticket: Ticket, body: Mapping[str, Any]) -> bool:
    """Whether another engine can go on with the request from its tokens alone."""
    if ticket.choices != 1:
        return False
    return all(
        value is None or name in _SAMPLING or name in _CARRIED or _is_without_effect(name, value)
        for name, value in body.items()
    )


def _is_without_effect(name: str, value: Any) -> bool:
    """0 asks for logprobs, and False does not: a type is a part of what was said."""
    return any(type(value) is type(known) and value == known for known in _WITHOUT_EFFECT.get(name, ()))


async def read_past(queue: ReleasedQueue, claim: Claim) -> Past:
    """Log and ids of the claim's request. Raises CannotContinue, GivenBack, and RedisError when Redis is long away."""
    request_id = claim.ticket.request_id
    ids = await _insist(queue.read_ids, request_id=request_id, fence=claim.fence)
    if ids is None:
        raise GivenBack("its fence is another worker's")
    frames: list[bytes] = []
    while len(frames) < claim.log_length:
        piece = await _insist(queue.read_log, request_id=request_id, after_seq=len(frames), limit=LOG_PAGE_FRAMES)
        if piece is None or not piece.frames:
            raise CannotContinue(f"its log has {len(frames)} of {claim.log_length} frames")
        frames += piece.frames
    parts = [choice for frame in frames for choice in orjson.loads(frame)["choices"]]
    shown = "".join(part.get("text") or (part.get("delta") or {}).get("content") or "" for part in parts)
    reasons = [part["finish_reason"] for part in parts if part.get("finish_reason")]
    if len(reasons) > 1 or not _WHOLE.issuperset(reasons):
        raise CannotContinue(f"its log ends with {reasons}")
    return Past(ids=ids, shown=shown, finish_reason="".join(reasons))


async def _insist(call: Callable[..., Any], **named: Any) -> Any:
    for pause in TELL_PAUSES:
        try:
            return await call(**named)
        except RedisError as error:
            log.warning("log_not_read", error=type(error).__name__)
            await asyncio.sleep(pause)
    return await call(**named)


async def plan(
    adapter: EngineAdapter, *, ticket: Ticket, claim: Claim, past: Past, body: dict[str, Any]
) -> tuple[EngineRequest, Past]:
    """What to ask of the engine, and the past with its text. Raises CannotContinue, EngineGone, EngineRefused,
    EngineBroke."""
    if not adapter.capabilities.replays or not isinstance(adapter, Replaying):
        raise CannotContinue("this engine takes no token ids")
    given = body.get("prompt")
    prompt = given if _is_ids(given) else await adapter.tokenize(endpoint=ticket.endpoint, body=body)
    assert isinstance(prompt, list)
    if claim.counts.prompt not in (0, len(prompt)):
        raise CannotContinue(f"the prompt has {len(prompt)} tokens here and had {claim.counts.prompt}")
    past = await _with_text(adapter, prompt[-CONTEXT_IDS:], past, is_guarded=ticket.policy is not None)
    left = ticket.max_tokens - len(past.ids)
    if left < 1 and not past.finish_reason:
        raise CannotContinue("all its tokens are out, and no end")
    sampling = {name: value for name, value in body.items() if name in _SAMPLING and value is not None}
    request = EngineRequest(
        request_id=engine_id(claim),
        endpoint=Endpoint.COMPLETIONS,
        body={**sampling, "prompt": [*prompt, *past.ids]},
        max_tokens=left,
        cache_salt=ticket.cache_salt,
    )
    return request, past


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and all(isinstance(item, int) for item in prompt)


async def _with_text(engine: Replaying, context: list[int], past: Past, *, is_guarded: bool) -> Past:
    """The text of the ids. Ids at the end that are a part of a character released nothing: they are generated again."""
    before = await engine.detokenize(context) if context else ""

    async def text_of(ids: list[int]) -> str:
        whole = await engine.detokenize([*context, *ids])
        if not whole.startswith(before):
            raise CannotContinue("the text of the released ids cannot be told from the prompt's")
        return whole[len(before) :]

    if past.finish_reason:
        spoken = past.ids[:-1] if past.finish_reason == "stop" else past.ids  # the one that ended it has no text
        text = await text_of(spoken)
        return replace(past, text=text if text == past.shown else text.rstrip(CUT_CHARACTER))
    ids, text = past.ids, await text_of(past.ids)
    for _ in range(CUT_IDS_MAX):
        if not text.endswith(CUT_CHARACTER) or (text == past.shown and not is_guarded):
            break
        ids = ids[:-1]
        text = await text_of(ids)
    return replace(past, ids=ids, text=text, is_cut=len(ids) < len(past.ids))


def as_continued(chunk: EngineChunk, *, chat: bool, before: TokenCounts, tokens: int) -> EngineChunk:
    """A chunk of the completion as one of the request that it continues, with counts of all its attempts.

    The prompt is billed as the first attempt counted it: that its answer was read again is not the client's doing.
    Engines tell only at their end how much of it was cached, so of an attempt that was lost before, that is unknown;
    then what this one found of the prompt counts, which is never to the client's loss.
    """
    prompt = before.prompt or chunk.counts.prompt - tokens
    counts = TokenCounts(
        prompt=prompt,
        cached=before.cached or min(chunk.counts.cached, prompt),
        completion=max(before.completion, tokens + chunk.counts.completion),
    )
    if not chat:
        return EngineChunk(body=chunk.body, counts=counts)
    choices = []
    for choice in chunk.body["choices"]:
        kept = {name: value for name, value in choice.items() if name != "text"}
        choices.append({**kept, "delta": {"content": choice.get("text") or ""}})
    return EngineChunk(body={**chunk.body, "choices": choices}, counts=counts)
