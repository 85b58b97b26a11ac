"""A whole run: installation, rounds, results. Called by `manage.py chaos` and tests/e2e."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.bench.instance import InstanceFailed
from infra.chaos.facts import Violation
from infra.chaos.installation import Installation, installed
from infra.chaos.round import Result, Rounds, plan_round, seed_of_round
from infra.chaos.spelling import make_spell

# A stream takes about a second; leases and pauses are the platform's own.
PACE = {"WEIR_SIM_PREFILL_TOKENS_PER_SECOND": "20000", "WEIR_SIM_DECODE_TOKENS_PER_SECOND": "100"}
Told = Callable[[int, Result], None]  # after each round: its number from one, and what became of it


async def run_chaos(
    *,
    rounds: int,
    seed: int,
    count: int,
    engine: str,
    told: Told,
    progressed: Callable[[], None] = lambda: None,
    keep_logs: Path | None = None,
) -> list[Result]:
    """All rounds; it goes on after a broken one, with another platform where one did not come back.

    Raises InstanceFailed when a platform cannot be started at all.
    """
    results: list[Result] = []

    def note(result: Result) -> None:
        results.append(result)
        told(len(results), result)

    while len(results) < rounds:
        try:
            async with installed(engine=engine, pace=PACE) as installation, asyncio.TaskGroup() as group:
                keeper = group.create_task(installation.keep())
                before = len(results)
                numbers = range(before, rounds)
                await _rounds(
                    installation, [seed_of_round(seed=seed, number=item) for item in numbers], count, note, progressed
                )
                if keep_logs is not None and any(result.violations for result in results[before:]):
                    shutil.copytree(installation.instance.home / "logs", keep_logs / f"from-round-{before + 1}")
                keeper.cancel()
        except* InstanceFailed as failed:
            raise InstanceFailed(str(failed.exceptions[0])) from None
    return results


async def _rounds(
    installation: Installation,
    seeds: Sequence[int],
    count: int,
    note: Callable[[Result], None],
    progressed: Callable[[], None],
) -> None:
    """Rounds until the last, or until the platform does not come back from one."""
    settings = installation.settings
    known = installation.engine == "simulated"
    spell = make_spell(model_dir=Path(settings["WEIR_MODEL_DIR"])) if known else None
    judge = Rounds(installation, model=settings["WEIR_MODEL"], spell=spell)
    try:
        await judge.open()
        for own in seeds:
            plan = plan_round(seed=own, count=count, tenants=sorted(installation.keys))
            try:
                note(await judge.run(plan, ended=progressed))
            except InstanceFailed as failed:
                violation = Violation("comes back", "", str(failed)[:4_000])
                tails = installation.instance.log_tails(lines=20).splitlines()
                hit = [f"{fault.name}: planned" for fault in plan.faults]
                note(Result(plan=plan, hit=hit, violations=[violation], evidence=tails))
                return
    finally:
        await judge.aclose()
