"""Bench `tp`: one model over three processes: what of a step is computing, what is talking? Real vLLM, no GPU.

Called by `manage.py bench tp`. The same prompts at temperature 0 to an engine with TP=1 and to one with TP=3 (the
model's nine heads and three KV heads divide by three, not by two). With TP=3 each process times its collectives
(infra/bench/inside/weir_collectives.py).

Invariant: answers are compared text for text, and differences are told. Shared memory between more processes than there
are cores says nothing of a link between GPUs, and the record says so.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from infra.bench.load import Answer
from infra.bench.output import Measure
from infra.bench.real.engine import EngineAway, RealEngine, chat, running
from infra.bench.stats import median

NAME = "tp"
ONE, RANKS = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    batches: tuple[int, ...] = (1, 4, 8)
    max_tokens: int = 16

    @property
    def steps(self) -> int:
        return 2 * len(self.batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one rank. Seconds."""

    seconds: float
    collectives: float
    calls: int
    tokens: int


@dataclass(slots=True, kw_only=True)
class Found:
    """`answers` by ranks, then by batch; `steps` by batch: decode steps of all three ranks."""

    plan: Plan
    engine: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[int, dict[int, list[Answer]]] = field(default_factory=dict)
    steps: dict[int, list[Step]] = field(default_factory=dict)


async def run(*, plan: Plan, advance: Callable[[int], None]) -> Found:
    """Raises EngineAway, also where no collective was timed, in a group."""
    found = Found(plan=plan, answers={ONE: {}, RANKS: {}})
    async with running("TP=1", max_num_seqs=max(plan.batches)) as engine:
        for batch in plan.batches:
            found.answers[ONE][batch] = await _ask(engine, batch, plan)
            advance(1)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        async with running(
            "TP=3",
            flags=("--worker-extension-cls", "weir_collectives.Timed"),
            environment={"WEIR_COLLECTIVES": folder, "VLLM_CPU_OMP_THREADS_BIND": "0|1|0"},
            tensor_parallel_size=RANKS,
            max_num_seqs=max(plan.batches),
        ) as engine:
            found.engine = engine.record_rows()
            for batch in plan.batches:
                _taken(Path(folder))
                found.answers[RANKS][batch] = await _ask(engine, batch, plan)
                found.steps[batch] = decode_steps(_taken(Path(folder)), batch=batch)
                advance(1)
    return found


async def _ask(engine: RealEngine, batch: int, plan: Plan) -> list[Answer]:
    prompts = (f"Tell me about the number {number + 7}." for number in range(batch))
    return await engine.ask_together([chat(prompt, max_tokens=plan.max_tokens) for prompt in prompts])


def _taken(folder: Path) -> list[str]:
    """The lines that the ranks wrote since the last time."""
    lines = []
    for file in folder.iterdir():
        lines += file.read_text().splitlines()
        file.write_text("")
    return lines


def decode_steps(lines: Iterable[str], *, batch: int) -> list[Step]:
    """Steps in which each answer of the batch got one token. Raises EngineAway where none was timed."""
    steps = [step for step in (Step(**json.loads(line)) for line in lines) if step.tokens == batch]
    if not steps or not all(step.calls for step in steps):
        raise EngineAway("no collective was timed")
    return steps


def measures(found: Found) -> list[Measure]:
    """Medians over decode steps; the peer of the time between tokens is TP=1."""
    lines = []
    for batch, steps in found.steps.items():
        case = {"tp": RANKS, "batch": batch}
        whole, talk = (median([part(step) for step in steps]) * 1_000 for part in (_seconds, _collectives))
        one, three = (_itl_ms(found.answers[ranks][batch]) for ranks in (ONE, RANKS))
        lines += [
            Measure(bench=NAME, metric="step_ms", unit="ms", value=whole, case=case),
            Measure(bench=NAME, metric="communication_ms", unit="ms", value=talk, case=case),
            Measure(bench=NAME, metric="compute_ms", unit="ms", value=whole - talk, case=case),
            Measure(bench=NAME, metric="communication_part", unit="part", value=talk / whole, case=case),
            Measure(bench=NAME, metric="itl_mean_ms", unit="ms", value=three, case=case, peer="TP=1", peer_value=one),
            Measure(bench=NAME, metric="answers_equal", unit="part", value=equal(found, batch), case=case),
        ]
    return lines


def equal(found: Found, batch: int) -> float:
    """Part of the answers whose text is that of TP=1."""
    return fmean(one.text == three.text for one, three in _pairs(found, batch))


def record(found: Found) -> Mapping[str, list[tuple[str, str]]]:
    """What ran, what it does not show, and where answers differ."""
    rows = [
        ("ranks", f"{RANKS} processes on the processors of this machine, collectives through shared memory"),
        ("not shown", "NVLink, PCIe, NCCL: none is here; more ranks than cores wait for each other above all"),
    ]
    for batch, steps in found.steps.items():
        calls = median([float(step.calls) for step in steps])
        rows.append((f"batch {batch}", f"{len(steps)} decode steps of all ranks, {calls:.0f} collectives in each"))
        for one, three in _pairs(found, batch):
            if one.text != three.text:
                at = next((i for i, (a, b) in enumerate(zip(one.text, three.text, strict=False)) if a != b), 0)
                rows.append((f"batch {batch}, apart", f"from character {at}: sums in another order round otherwise"))
    return {"engine": found.engine, "tensor parallelism": rows}


def _pairs(found: Found, batch: int) -> Iterable[tuple[Answer, Answer]]:
    return zip(found.answers[ONE][batch], found.answers[RANKS][batch], strict=True)


def _seconds(step: Step) -> float:
    return step.seconds


def _collectives(step: Step) -> float:
    return step.collectives


def _itl_ms(answers: Iterable[Answer]) -> float:
    return fmean(answer.gap_per_token for answer in answers) * 1_000
