"""Arrivals for the routing simulation: made from a seed, or from a public trace with prefixes. Pure but for the file.

Called by bench `routing`. A block id names its whole chain under its tenant, as the engine's salted hashes do, so equal
ids are equal prefixes of one tenant. Invariant: the same seed gives the same arrivals.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from infra.sim.routing.workers import Request

BLOCK = 256
TRACE_BLOCK = 512  # tokens of a block id in Mooncake's traces
TENANTS = 150
PREFIX, UNIQUE, OUTPUT = 6_000, 1_216, 150
TRACE_TENANTS = 8


class NoPrefixes(ValueError):
    """The file is no trace with block ids; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests by time, and what they are."""

    name: str
    about: str
    requests: Sequence[Request]


class _Ids:
    """A number for each chain: equal chains of one tenant get the same ids."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | str], int] = {}

    def chain(self, tenant: int, parts: Sequence[int | str]) -> tuple[int, ...]:
        before, ids = -1 - tenant, []
        for part in parts:
            before = self._known.setdefault((before, part), len(self._known))
            ids.append(before)
        return tuple(ids)


def shared_prefixes(*, name: str, seed: int, rows: int, per_second: float, weight: Callable[[int], float]) -> Workload:
    """Tenants with one long system prompt each; `weight` says how much a tenant asks."""
    source, ids = random.Random(f"{seed}{name}"), _Ids()  # noqa: S311 - repeatable, no secret
    weights = [weight(tenant) for tenant in range(TENANTS)]
    at, requests = 0.0, []
    for number in range(rows):
        at += source.expovariate(per_second)
        [tenant] = source.choices(range(TENANTS), weights)
        output = max(int(source.expovariate(1 / OUTPUT)), 1)
        whole = (PREFIX + UNIQUE) // BLOCK
        parts: list[int | str] = [f"s{n}" if (n + 1) * BLOCK <= PREFIX else f"{number}.{n}" for n in range(whole)]
        chain = ids.chain(tenant, parts)
        requests.append(_request(number, at, tenant, PREFIX + UNIQUE, output, chain, chain, BLOCK))
    about = f"{TENANTS} tenants, {PREFIX} shared and {UNIQUE} own tokens, {per_second:g} requests/s"
    return Workload(name=name, about=about, requests=requests)


def no_reuse(*, seed: int, rows: int, per_second: float) -> Workload:
    """Prompts that nobody asked before."""
    source, ids = random.Random(f"{seed}none"), _Ids()  # noqa: S311 - repeatable, no secret
    at, requests = 0.0, []
    for number in range(rows):
        at += source.expovariate(per_second)
        prompt = min(max(int(source.lognormvariate(7.3, 0.8)), 16), 16_000)
        tenant = source.randrange(TENANTS)
        chain = ids.chain(tenant, [f"{number}.{n}" for n in range(prompt // BLOCK)])
        output = max(int(source.expovariate(1 / OUTPUT)), 1)
        requests.append(_request(number, at, tenant, prompt, output, chain, chain, BLOCK))
    return Workload(name="no_reuse", about=f"every prompt its own, {per_second:g} requests/s", requests=requests)


def multi_turn(*, seed: int, rows: int, per_second: float) -> Workload:
    """Conversations of 2 to 12 turns; each prompt is the whole conversation so far, answers included."""
    source, ids = random.Random(f"{seed}turns"), _Ids()  # noqa: S311 - repeatable, no secret
    made: list[Request] = []
    began, talk = 0.0, 0
    while len(made) < 2 * rows:
        began += source.expovariate(per_second / 7)
        tenant, talk = source.randrange(40), talk + 1
        at, length = began, 0
        for _ in range(source.randint(2, 12)):
            prompt = length + source.randint(200, 1_200)
            output = max(int(source.expovariate(1 / 250)), 8)
            length = prompt + output
            chain = ids.chain(tenant, [f"{talk}.{n}" for n in range(length // BLOCK)])
            made.append(_request(0, at, tenant, prompt, output, chain[: prompt // BLOCK], chain, BLOCK))
            at += 4 + source.expovariate(1 / 8)  # the answer is read, the next question typed
    made.sort(key=lambda request: request.at)
    made = made[:rows]
    for number, request in enumerate(made):
        request.number = number
    about = f"conversations of 2 to 12 turns, 40 tenants, about {per_second:g} requests/s once they all run"
    return Workload(name="multi_turn", about=about, requests=made)


def of_trace(path: Path, *, seed: int, rows: int, tokens_per_s: float) -> Workload:
    """A Mooncake trace, as much quicker as makes `tokens_per_s` of unseen prompt tokens. Raises NoPrefixes, OSError.

    It names no tenants: each conversation (what begins with the same two blocks) is drawn to one of eight, and blocks
    are salted by tenant, so what the trace shares over conversations is shared within a tenant only.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            raw = [json.loads(line) for line in islice(lines, rows)]
        read = sorted(
            (float(r["timestamp"]), int(r["input_length"]), int(r["output_length"]), r["hash_ids"]) for r in raw
        )
    except (ValueError, KeyError, TypeError, gzip.BadGzipFile) as error:
        raise NoPrefixes(f"{path.name}: not Mooncake's JSON lines with hash_ids: {error!r}") from error
    read = [row for row in read if row[1] > 0 and row[2] > 0]
    if not read:
        raise NoPrefixes(f"{path.name} holds no request")
    ids, seen = _Ids(), set[int]()
    rows_made, fresh = [], 0
    for number, (at, prompt, output, hashes) in enumerate(read):
        tenant = random.Random(f"{seed}{hashes[:2]}").randrange(TRACE_TENANTS)  # noqa: S311 - repeatable
        chain = ids.chain(tenant, hashes[: prompt // TRACE_BLOCK])
        fresh += prompt - TRACE_BLOCK * sum(block in seen for block in chain)
        seen.update(chain)
        rows_made.append((number, at / 1_000, tenant, prompt, output, chain))
    first, last = rows_made[0][1], rows_made[-1][1]
    pace = max(last - first, 0.001) * tokens_per_s / max(fresh, 1)
    requests = [
        _request(n, (at - first) / pace, t, p, o, chain, chain, TRACE_BLOCK) for n, at, t, p, o, chain in rows_made
    ]
    about = f"{path.name}, first {len(requests)} rows, {pace:.2f} times as fast, tenants drawn ({TRACE_TENANTS})"
    return Workload(name=path.name.partition(".")[0], about=about, requests=requests)


def _request(
    number: int,
    at: float,
    tenant: int,
    prompt: int,
    output: int,
    blocks: Sequence[int],
    after: Sequence[int],
    size: int,
) -> Request:
    return Request(
        number=number, at=at, tenant=tenant, prompt=prompt, output=output, blocks=blocks, after=after, block_tokens=size
    )
