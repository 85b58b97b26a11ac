"""A whole run: installation, rounds, results. Called by `manage.py chaos` and tests/e2e."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
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
    """All rounds; it goes on after a broken one. Raises InstanceFailed when the platform cannot be started."""
    try:
        async with installed(engine=engine, pace=PACE) as installation, asyncio.TaskGroup() as group:
            keeper = group.create_task(installation.keep())
            results = await _rounds(installation, rounds, seed, count, told, progressed)
            if keep_logs is not None and any(result.violations for result in results):
                shutil.copytree(installation.instance.home / "logs", keep_logs, dirs_exist_ok=True)
            keeper.cancel()
    except* InstanceFailed as failed:
        raise InstanceFailed(str(failed.exceptions[0])) from None
    return results


async def _rounds(
    installation: Installation, rounds: int, seed: int, count: int, told: Told, progressed: Callable[[], None]
) -> list[Result]:
    settings = installation.settings
    known = installation.engine == "simulated"
    spell = make_spell(model_dir=Path(settings["WEIR_MODEL_DIR"])) if known else None
    judge = Rounds(installation, model=settings["WEIR_MODEL"], spell=spell)
    results: list[Result] = []
    try:
        await judge.open()
        for number in range(rounds):
            own = seed_of_round(seed=seed, number=number)
            plan = plan_round(seed=own, count=count, tenants=sorted(installation.keys))
            try:
                result = await judge.run(plan, ended=progressed)
            except InstanceFailed as failed:
                violation = Violation("comes back", "", str(failed)[:4_000])
                tails = installation.instance.log_tails(lines=20).splitlines()
                results.append(Result(plan=plan, violations=[violation], evidence=tails))
                told(number + 1, results[-1])
                return results
            results.append(result)
            told(number + 1, result)
    finally:
        await judge.aclose()
    return results
