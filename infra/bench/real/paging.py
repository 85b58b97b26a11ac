"""Bench `paging`: what do pages waste, and what would contiguous room for the same requests have wasted? Real vLLM.

Called by `manage.py bench paging`. The engine's scheduler is vLLM's own with a look at its page table
(infra/bench/inside/weir_pages.py): tokens that are held, room of their blocks, blocks that several requests hold.
Against it, contiguous pre-allocation of the same requests at the same moments: to the model's whole context, and to
what each could come to (its prompt and max_tokens). Workloads: `mixed` prompts, and `shared`, which begin alike.

Invariant: a block is counted once, however many requests hold it; nothing is estimated for the paged side.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.real.engine import EngineAway, chat, running

NAME = "paging"
CONTEXT, ASKED = "contiguous by context", "contiguous by max_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes. `words` of the prompts in turns; `shared_words` begin every prompt of the workload `shared`."""

    requests: int = 6
    max_tokens: int = 48
    words: tuple[int, ...] = (20, 90, 200, 350)
    shared_words: int = 300
    max_model_len: int = 2_048
    seed: int = 1

    @property
    def steps(self) -> int:
        return len(self.workloads())

    def workloads(self) -> dict[str, list[dict[str, Any]]]:
        number = range(self.requests)
        begin = make_prompt(seed=self.seed, index=-1, words=self.shared_words)
        mixed = [make_prompt(seed=self.seed, index=n, words=self.words[n % len(self.words)]) for n in number]
        return {
            "mixed": [chat(text, max_tokens=self.max_tokens) for text in mixed],
            "shared": [chat(f"{begin} Now the number {n}.", max_tokens=self.max_tokens) for n in number],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One moment of the page table. `references`: from requests to blocks; `asked`: tokens they could come to."""

    tokens: int
    blocks: int
    references: int
    requests: int
    asked: int

    @classmethod
    def read(cls, line: str, *, max_tokens: int) -> Look:
        """A line that the scheduler wrote. Raises ValueError, KeyError."""
        requests = json.loads(line)
        pages = [block for request in requests for block, _ in request["pages"]]
        return cls(
            tokens=sum(request["tokens"] for request in requests),
            blocks=len(set(pages)),
            references=len(pages),
            requests=len(requests),
            asked=sum(request["prompt"] + max_tokens for request in requests),
        )

    def used(self, block: int) -> float:
        """Part of the blocks' room that holds tokens. Shared blocks are full: their tokens count once, as they do."""
        return (self.tokens - (self.references - self.blocks) * block) / (self.blocks * block)


@dataclass(slots=True, kw_only=True)
class Found:
    """`looks` by workload: those at which most requests ran."""

    plan: Plan
    engine: list[tuple[str, str]]
    block: int
    blocks: int
    looks: dict[str, list[Look]] = field(default_factory=dict)


async def run(*, plan: Plan, advance: Callable[[int], None]) -> Found:
    """Raises EngineAway, also where the engine showed no pages, in a group."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        file = Path(folder) / "pages.jsonl"
        flags = ("--scheduler-cls", "weir_pages.PagesScheduler", "--no-async-scheduling")
        async with running(
            NAME,
            flags=flags,
            environment={"WEIR_PAGES_FILE": str(file)},
            max_num_seqs=plan.requests,
            max_model_len=plan.max_model_len,
        ) as engine:
            facts = engine.facts
            found = Found(plan=plan, engine=engine.record_rows(), block=facts.block_tokens, blocks=facts.blocks)
            for name, bodies in plan.workloads().items():
                await engine.ask({**bodies[0], "max_tokens": 1})  # a beginning that others share is in the cache
                file.write_text("")
                await engine.ask_together(bodies)
                found.looks[name] = fullest(
                    Look.read(line, max_tokens=plan.max_tokens) for line in file.read_text().splitlines()
                )
                advance(1)
    return found


def fullest(looks: Iterable[Look]) -> list[Look]:
    """Those at which most requests ran and blocks were held. Raises EngineAway where there is none."""
    every = [look for look in looks if look.blocks]
    if not every:
        raise EngineAway("the engine showed no pages")
    most = max(look.requests for look in every)
    return [look for look in every if look.requests == most]


def measures(found: Found) -> list[Measure]:
    """Means over the looks."""
    lines = []
    for name, looks in found.looks.items():
        used = fmean(look.used(found.block) for look in looks)
        context = fmean(look.tokens / (look.requests * found.plan.max_model_len) for look in looks)
        asked = fmean(look.tokens / look.asked for look in looks)
        for peer, value in ((CONTEXT, context), (ASKED, asked)):
            case = {"workload": name, "against": peer}
            lines.append(
                Measure(bench=NAME, metric="room_used", unit="part", value=used, case=case, peer=peer, peer_value=value)
            )
        for metric, part in (
            ("fragmentation", 1 - used),
            ("blocks_shared", fmean(1 - look.blocks / look.references for look in looks)),
            ("occupancy", fmean(look.blocks / found.blocks for look in looks)),
        ):
            lines.append(Measure(bench=NAME, metric=metric, unit="part", value=part, case={"workload": name}))
    return lines


def record(found: Found) -> dict[str, list[tuple[str, str]]]:
    """What was looked at."""
    rows = [
        ("block", f"{found.block} tokens, as large as this build has it: on a GPU 16 is usual, and wastes less"),
        (CONTEXT, f"room for {found.plan.max_model_len:,} tokens each: made when nothing is known"),
        (
            ASKED,
            f"room for the prompt and {found.plan.max_tokens} tokens each: made when max_tokens is believed",
        ),
    ]
    for name, looks in found.looks.items():
        tokens = f"{min(look.tokens for look in looks):,} to {max(look.tokens for look in looks):,} tokens held"
        rows.append((name, f"{len(looks)} looks at the page table with {looks[0].requests} requests in it, {tokens}"))
    return {"engine": found.engine, "load": rows}
