"""Turns engine chunks into frames: the bytes that the client will see. Called by `attempt`; waits for the guard only.

Invariants: all text of a choice (content, reasoning, tool-call names and arguments, any other text field) passes the
output guard before it is in a frame; once the guard blocks, nothing but the `content_filter` frames leaves; a finish
reason is the engine's or the guard's; a frame carries no usage and no token ids; fields that this module does not know
are kept.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from contracts.jobs import Endpoint, Ticket
from fairqueue.messages import pack_ids
from workers.engines.base import EngineBroke, EngineChunk

CONTENT_FILTER = "content_filter"
_ENGINE_ONLY_CHUNK = ("usage", "prompt_token_ids", "kv_transfer_params")
_ENGINE_ONLY_CHOICE = ("token_ids", "prompt_token_ids")
_PLAIN_DELTA = ("role", "content")
_USUAL_CHUNK = frozenset({"id", "object", "created", "model", "choices", *_ENGINE_ONLY_CHUNK})


class Released(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def blocked(self) -> bool: ...


class Guard(Protocol):
    """`safety.stream.OutputGuard`."""

    async def feed(self, channel: str, text: str) -> Released: ...

    async def finish(self, channel: str) -> Released: ...

    @property
    def verdicts(self) -> tuple[str, ...]: ...


@dataclass(slots=True)
class _Choice:
    """What one choice has released; `open_fields` maps a guard channel to where its text goes in a delta."""

    finish_reason: str = ""
    open_fields: dict[str, tuple[str, int]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)


class FrameBuilder:
    """Frames of one request, chunk by chunk. `guard` None: the tenant has no output rules.

    `keeps_ids`: another engine could go on with the request from its tokens, so their ids are kept for the log.
    """

    def __init__(self, ticket: Ticket, guard: Guard | None, *, keeps_ids: bool = False) -> None:
        self._ticket = ticket
        self._guard = guard
        self._chat = ticket.endpoint is Endpoint.CHAT
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{ticket.request_id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": ticket.admitted_at_ms // 1000,
            "model": ticket.model,
        }
        self._choices = [_Choice() for _ in range(ticket.choices)]
        self._around = _around(self._head, usage=ticket.include_usage)
        self._fed = 0
        self._released = 0
        self._marks: deque[tuple[int, int]] = deque()
        self._blocked = False
        self._ids: list[int] | None = [] if keeps_ids else None  # of what no frame has carried yet
        self._identified = 0
        self.delivered_tokens = 0

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(choice.finish_reason for choice in self._choices)

    @property
    def blocked(self) -> bool:
        """Whether the guard has stopped the request."""
        return self._blocked

    @property
    def finish_reason(self) -> str:
        """The first choice's, or the guard's, which ends all of them."""
        return CONTENT_FILTER if self.blocked else self._choices[0].finish_reason

    @property
    def verdicts(self) -> tuple[str, ...]:
        return self._guard.verdicts if self._guard is not None else ()

    def answer(self) -> list[dict[str, str]]:
        """Released text per choice and field, for the evaluation log."""
        return [
            {"finish_reason": choice.finish_reason, **{name: "".join(parts) for name, parts in choice.texts.items()}}
            for choice in self._choices
        ]

    async def build(self, chunk: EngineChunk) -> list[bytes]:
        """Frames to release for this chunk: none, one, or with a block one for each open choice.

        Raises EngineBroke for a chunk that does not fit the request.
        """
        if self._blocked:
            return []
        self._note_ids(chunk)
        usual = self._usual(chunk.body)
        if usual is not None:
            self._mark(chunk.counts.completion)
            return [usual]
        kept: list[dict[str, Any]] = []
        for raw in chunk.body["choices"]:
            choice = await self._guarded(raw)
            if self.blocked:
                frames = [self._frame(chunk.body, kept)] if kept else []
                return [*frames, *self._block(choice)]
            if self._is_worth_sending(choice):
                kept.append(choice)
        self._mark(chunk.counts.completion)
        return [self._frame(chunk.body, kept)] if kept else []

    def _note_ids(self, chunk: EngineChunk) -> None:
        """Ids are worth keeping only while all tokens have one and all text is content."""
        if self._ids is None:
            return
        for choice in chunk.body["choices"]:
            ids = choice.get("token_ids")
            if ids:
                self._ids += ids
                self._identified += len(ids)
            delta = choice.get("delta")
            if delta and len(delta) > 1 and any(delta[name] for name in delta if name not in _PLAIN_DELTA):
                self._ids = None
                return
        if self._identified != chunk.counts.completion:
            self._ids = None

    def take_ids(self, *, frames: int) -> list[bytes] | None:
        """For each of the frames just built the ids that go into the log with it. None: no other engine could go on.

        A frame carries all ids since the one before: also of tokens whose text the guard still holds back, since what
        it lets go is a function of all that it was fed.
        """
        if self._ids is None or self._blocked:
            return None
        if not frames:
            return []
        packed = pack_ids(self._ids)
        self._ids.clear()
        return [packed, *[b""] * (frames - 1)]

    async def resume(self, *, text: str, shown: str, tokens: int, finish_reason: str, is_cut: bool) -> bool:
        """Stand where the attempt before stopped, after `tokens` tokens that say `text`. False: it released another
        text than `shown`, so what follows would not fit."""
        state = self._choices[0]
        place = ("content" if self._chat else "text", 0)
        released = await self._pass(0, state, "content", place, text)
        if finish_reason:
            released += await self._finish_channel(0, state, "content")
            state.finish_reason = finish_reason
        self._identified = tokens
        if is_cut:
            self._ids = None  # those in the pool end with more than what is generated again
        self._mark(tokens)
        return not self._blocked and released == shown

    def _usual(self, body: dict[str, Any]) -> bytes | None:
        """The frame of a chunk that is nothing but more content, as nearly all are; None for any other.

        The same frame as the long way's, at a quarter of its cost.
        """
        choices = body["choices"]
        if self._guard is not None or not self._chat or len(choices) != 1 or not body.keys() <= _USUAL_CHUNK:
            return None
        raw = choices[0]
        delta = raw.get("delta")
        if raw["index"] != 0 or raw.get("finish_reason") or not delta or len(delta) != 1:
            return None
        text = delta.get("content")
        if not text or not isinstance(text, str):
            return None
        self._choices[0].texts.setdefault("content", []).append(text)
        choice = raw.copy()
        for name in _ENGINE_ONLY_CHOICE:
            choice.pop(name, None)
        before, after = self._around
        return before + orjson.dumps(choice) + after

    def _frame(self, body: dict[str, Any], choices: list[dict[str, Any]]) -> bytes:
        frame = {**body, **self._head, "choices": choices}
        for name in _ENGINE_ONLY_CHUNK:
            frame.pop(name, None)
        if self._ticket.include_usage:
            frame["usage"] = None
        return orjson.dumps(frame)

    async def _guarded(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The choice with its text through the guard. Sets `blocked`."""
        index = raw["index"]
        if not 0 <= index < len(self._choices):
            raise EngineBroke(f"the engine sent choice {index} of {len(self._choices)}")
        state = self._choices[index]
        choice = {name: value for name, value in raw.items() if name not in _ENGINE_ONLY_CHOICE}
        if self._guard is not None and choice.get("logprobs") is not None:
            choice["logprobs"] = None  # they spell out text that the guard still holds back or has removed
        if self._chat:
            choice["delta"] = await self._guarded_delta(index, state, dict(choice.get("delta") or {}))
        else:
            choice["text"] = await self._pass(index, state, "content", ("text", 0), choice.get("text") or "")
        reason = choice.get("finish_reason")
        if reason and not self.blocked:
            await self._flush(index, state, choice)
            state.finish_reason = CONTENT_FILTER if self.blocked else reason
        return choice

    async def _guarded_delta(self, index: int, state: _Choice, delta: dict[str, Any]) -> dict[str, Any]:
        for name, value in delta.items():
            if self.blocked:
                break
            if name == "tool_calls" and value:
                delta[name] = [await self._guarded_call(index, state, call) for call in value]
            elif name != "role" and isinstance(value, str) and value:
                delta[name] = await self._pass(index, state, name, (name, 0), value)
        return delta

    async def _guarded_call(self, index: int, state: _Choice, call: dict[str, Any]) -> dict[str, Any]:
        function = dict(call.get("function") or {})
        number = call.get("index", 0)
        if function.get("name"):
            # A name comes whole: it is judged at once and never waits for more.
            channel = f"tool:{number}:name:{len(state.texts.get(f'tool:{number}:name', ()))}"
            name = await self._pass(index, state, channel, ("", 0), function["name"])
            function["name"] = name + await self._finish_channel(index, state, channel)
            state.texts.setdefault(f"tool:{number}:name", []).append(function["name"])
        if function.get("arguments"):
            place = ("tool_calls", number)
            function["arguments"] = await self._pass(index, state, f"tool:{number}", place, function["arguments"])
        return {**call, "function": function}

    async def _pass(self, index: int, state: _Choice, channel: str, place: tuple[str, int], text: str) -> str:
        if not text or self.blocked:
            return ""
        if self._guard is not None:
            state.open_fields.setdefault(channel, place)
            self._fed += len(text)
            released = await self._guard.feed(f"{index}:{channel}", text)
            self._blocked = released.blocked
            text = released.text
            self._released += len(text)
        state.texts.setdefault(channel, []).append(text)
        return text

    async def _finish_channel(self, index: int, state: _Choice, channel: str) -> str:
        if self._guard is None or self.blocked or state.open_fields.pop(channel, None) is None:
            return ""
        released = await self._guard.finish(f"{index}:{channel}")
        self._blocked = released.blocked
        self._released += len(released.text)
        state.texts.setdefault(channel, []).append(released.text)
        return released.text

    async def _flush(self, index: int, state: _Choice, choice: dict[str, Any]) -> None:
        """The choice ends: what the guard still holds leaves with the last frame, or is blocked."""
        for channel, (name, number) in list(state.open_fields.items()):
            rest = await self._finish_channel(index, state, channel)
            if not rest:
                continue
            if not self._chat:
                choice["text"] += rest
            elif name == "tool_calls":
                _append_arguments(choice["delta"], number, rest)
            else:
                choice["delta"][name] = (choice["delta"].get(name) or "") + rest

    def _block(self, hit: dict[str, Any]) -> list[bytes]:
        """The last frames of every open choice; the one that was hit keeps the text before the match."""
        frames = []
        for index, state in enumerate(self._choices):
            mine = index == hit["index"]
            if state.finish_reason and not mine:
                continue
            state.finish_reason = CONTENT_FILTER
            choice: dict[str, Any] = {"index": index}
            if self._chat:
                choice["delta"] = {"content": hit["delta"].get("content") or ""} if mine else {}
            else:
                choice["text"] = hit["text"] if mine else ""
            frames.append(self._frame({}, [{**choice, "logprobs": None, "finish_reason": CONTENT_FILTER}]))
        return frames

    def _is_worth_sending(self, choice: dict[str, Any]) -> bool:
        if choice.get("finish_reason") or choice.get("logprobs"):
            return True
        if not self._chat:
            return bool(choice["text"])
        delta = choice["delta"]
        if delta.get("role"):
            return True
        calls = delta.get("tool_calls") or []
        if any(call.get("id") or call["function"].get("name") or call["function"].get("arguments") for call in calls):
            return True
        return any(value for name, value in delta.items() if name != "tool_calls")

    def _mark(self, completion: int) -> None:
        """Remember at which length of text this many tokens are out. A redaction makes it an estimate from below."""
        if self._guard is None:
            self.delivered_tokens = completion
            return
        self._marks.append((self._fed, completion))
        while self._marks and self._marks[0][0] <= self._released:
            self.delivered_tokens = self._marks.popleft()[1]


def _around(head: dict[str, Any], *, usage: bool) -> tuple[bytes, bytes]:
    """What stands before and after the one choice of a usual frame."""
    before = orjson.dumps({**head, "choices": []}).removesuffix(b"]}")
    return before, b'],"usage":null}' if usage else b"]}"


def _append_arguments(delta: dict[str, Any], number: int, text: str) -> None:
    calls = delta.setdefault("tool_calls", None) or []
    for call in calls:
        if call.get("index", 0) == number:
            call["function"]["arguments"] = (call["function"].get("arguments") or "") + text
            break
    else:
        calls = [*calls, {"index": number, "function": {"arguments": text}}]
    delta["tool_calls"] = calls
