"""What must hold of an event stream. Called by `cases/streams.py`; pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from infra.conformance.case import Answer, Seen, Skipped, Wrong
from infra.conformance.checks import REFUSALS, checked_usage, content_of, one_each, refused, usage_of
from infra.conformance.parse import parse_events, sdk_sees

Chunk = dict[str, Any]
DONE = "[DONE]"


def chunks_of(answer: Answer) -> list[Chunk]:
    """The chunks of a whole stream, its ending checked. Raises Wrong."""
    if answer.status != 200:
        raise Wrong(f"{answer.status} where 200 must be: {answer.text(80)}")
    if answer.media_type != "text/event-stream":
        raise Wrong(f"Content-Type {answer.header('content-type')!r} for a stream")
    try:
        text = answer.body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Wrong(f"the stream is no UTF-8 at byte {error.start}") from error
    data = [event.data for event in parse_events(text) if event.data is not None]
    if not data or data[-1] != DONE:
        raise Wrong(f"the stream ends with {data[-1][:60] if data else 'nothing'!r}, not [DONE]")
    if DONE in data[:-1]:
        raise Wrong("[DONE] before the end")
    return [_chunk(one) for one in data[:-1]]


def _chunk(data: str) -> Chunk:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise Wrong(f"data that is no JSON: {data[:60]!r}") from error
    if not isinstance(chunk, dict) or "error" in chunk:
        raise Wrong(f"a chunk {data[:80]}")
    return chunk


def deltas_of(chunks: list[Chunk], index: int = 0) -> str:
    """The text of one choice, put together."""
    parts = []
    for chunk in chunks:
        for choice in chunk.get("choices", []):
            if choice.get("index") == index:
                parts.append((choice.get("delta") or {}).get("content") or choice.get("text") or "")
    return "".join(parts)


def on_chunks(*checks: Callable[[list[Chunk]], None]) -> Callable[[Answer], None]:
    """The checks, of an answer's chunks."""

    def check(answer: Answer) -> None:
        chunks = chunks_of(answer)
        for one in checks:
            one(chunks)

    return check


def same_head(kind: str) -> Callable[[list[Chunk]], None]:
    """One id, one created, one model, one object in all chunks."""

    def check(chunks: list[Chunk]) -> None:
        for name in ("id", "created", "model"):
            one_each([chunk.get(name) for chunk in chunks], name)
        if one_each([chunk.get("object") for chunk in chunks], "object") != kind:
            raise Wrong(f"object is {chunks[0].get('object')!r}, not {kind!r}")

    return check


def role_first(chunks: list[Chunk]) -> None:
    """The first delta of a chat names the role, and only the first."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice.get("index") == 0]
    if not deltas or deltas[0].get("role") != "assistant":
        raise Wrong(f"the first delta is {str(deltas[:1])[:80]}")
    if any(delta.get("role") not in (None, "assistant") for delta in deltas):
        raise Wrong("a role that changes")


def one_finish(chunks: list[Chunk]) -> None:
    """Each choice ends once, and nothing of it comes after."""
    ended: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.get("choices", []):
            index, reason = choice.get("index"), choice.get("finish_reason")
            if index in ended and (reason is not None or deltas_of([chunk], index)):
                raise Wrong(f"choice {index} goes on after its end")
            if reason is not None:
                ended[index] = reason
    if not ended:
        raise Wrong("no finish_reason")
    for reason in ended.values():
        if reason not in ("stop", "length", "tool_calls", "content_filter"):
            raise Wrong(f"finish_reason is {reason!r}")


def no_usage(chunks: list[Chunk]) -> None:
    """Usage only where asked for; and no chunk without a choice, which breaks clients that do not expect it."""
    if any(chunk.get("usage") is not None for chunk in chunks):
        raise Wrong("usage that nobody asked for")
    if any(not chunk.get("choices") for chunk in chunks):
        raise Wrong("a chunk without choices though no usage was asked for")


def usage_last(chunks: list[Chunk]) -> None:
    """The last chunk has usage and no choices; the ones before say `usage: null`."""
    *before, last = chunks
    if last.get("choices") != []:
        raise Wrong(f"the usage chunk has the choices {str(last.get('choices'))[:60]}")
    checked_usage(last.get("usage"))
    for chunk in before:
        if chunk.get("usage", "missing") is not None:
            raise Wrong(f"usage is {chunk.get('usage', 'missing')!r} before the end, not null")


def indexes(count: int) -> Callable[[list[Chunk]], None]:
    """Chunks of so many choices, each with text of its own."""

    def check(chunks: list[Chunk]) -> None:
        found = {choice.get("index") for chunk in chunks for choice in chunk.get("choices", [])}
        if found != set(range(count)):
            raise Wrong(f"choices with the indexes {sorted(found)}")

    return check


def sdk_reads(answer: Answer) -> None:
    """OpenAI's own decoder hands no empty data to its JSON parser. Its rule: every block counts once an id was seen."""
    chunks_of(answer)
    for data in sdk_sees(answer.body.decode("utf-8")):
        if data.strip() == "":
            raise Wrong("a block without data after an id: the OpenAI SDK fails on it")


def same_as_whole(seen: Seen) -> None:
    """The streamed text and usage are those of the whole answer."""
    whole, chunks = seen.answer_to(0), chunks_of(seen.answer)
    if deltas_of(chunks) != content_of(whole):
        raise Wrong(f"streamed {deltas_of(chunks)[:50]!r}, whole {content_of(whole)[:50]!r}")
    usage = chunks[-1].get("usage")
    if usage is not None and checked_usage(usage)["completion_tokens"] != usage_of(whole)["completion_tokens"]:
        raise Wrong(f"streamed {usage['completion_tokens']} tokens, whole {usage_of(whole)['completion_tokens']}")


def many_pieces(seen: Seen) -> None:
    """A stream comes in pieces, not in one: at least one of those that were asked for."""
    chunks = [len(chunks_of(seen.answer_to(index))) for index in range(len(seen.replies))]
    pieces = [seen.answer_to(index).pieces for index in range(len(seen.replies))]
    if max(pieces) < 3:
        raise Wrong(f"streams of {chunks} chunks came in {pieces} pieces")


def refusal_or(check: Callable[[Answer], None], *params: str) -> Callable[[Seen], None]:
    """The check, or a refusal that names the field (skipped)."""

    def both(seen: Seen) -> None:
        if seen.answer.status in REFUSALS:
            refused(*params)(seen)
            raise Skipped(f"not supported, and said so: {seen.summary()}")
        check(seen.answer)

    return both


def tool_calls_of(chunks: list[Chunk]) -> list[dict[str, Any]]:
    """Tool calls put together from their deltas by index, as SDKs do. Raises Wrong."""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices", []):
            for delta in (choice.get("delta") or {}).get("tool_calls") or []:
                call = calls.setdefault(delta.get("index", -1), {"id": None, "name": "", "arguments": ""})
                call["id"] = call["id"] or delta.get("id")
                function = delta.get("function") or {}
                call["name"] += function.get("name") or ""
                call["arguments"] += function.get("arguments") or ""
    if -1 in calls:
        raise Wrong("a tool call's delta without index")
    return [calls[index] for index in sorted(calls)]
