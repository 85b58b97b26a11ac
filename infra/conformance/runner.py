"""Runs cases against one server: slow ones beside all the rest, some alone at the end. For `manage.py conformance`.

Invariants: one result for each case, in the order given; a server that asks for patience (429 with Retry-After) gets
it, within bounds; an error of this suite itself is raised, never a verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from infra.conformance.case import Case, Result, Seen, Skipped, Verdict, Wrong
from infra.conformance.checks import sane
from infra.conformance.send import Sender
from infra.conformance.target import Target

AT_ONCE = 6  # requests open beside each other, the slow ones apart: they only wait
_PATIENCE_SECONDS = 30.0
_TRIES = 3
_REACH_SECONDS = 10.0


async def run_cases(cases: Sequence[Case], target: Target, *, advance: Callable[[Result], None]) -> list[Result]:
    """A result for each case. Raises OSError when the server cannot be reached at all before the first case."""
    await _reach(target)
    results: dict[str, Result] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case, sender: Sender) -> None:
        if case.slow:
            result = await _judged(case, sender)
        else:
            async with gate:
                result = await _judged(case, sender)
        results[case.title] = result
        advance(result)

    async with Sender(target) as sender:
        async with asyncio.TaskGroup() as tasks:
            for case in cases:
                if not case.alone:
                    tasks.create_task(one(case, sender))
        for case in cases:
            if case.alone:
                await one(case, sender)
    return [results[case.title] for case in cases]


async def _reach(target: Target) -> None:
    async with asyncio.timeout(_REACH_SECONDS):  # a TimeoutError is an OSError
        _, writer = await asyncio.open_connection(target.host, target.port)
    writer.close()


async def _judged(case: Case, sender: Sender) -> Result:
    """One case, again where the server asked to wait."""
    for attempt in range(_TRIES):
        try:
            seen = await sender.run(case)
        except Skipped as skipped:
            return Result(case=case, verdict=Verdict.SKIPPED, seen=str(skipped))
        except Wrong as wrong:
            return Result(case=case, verdict=Verdict.WRONG, seen=str(wrong))
        except OSError as error:
            return Result(case=case, verdict=Verdict.WRONG, seen=f"no connection: {error or type(error).__name__}")
        wait = _asked_to_wait(seen)
        if wait is None:
            break
        if attempt == _TRIES - 1 or wait > _PATIENCE_SECONDS:
            return Result(case=case, verdict=Verdict.SKIPPED, seen=f"rate limited: {seen.summary()}")
        await asyncio.sleep(wait)
    return judge(case, seen)


def judge(case: Case, seen: Seen) -> Result:
    """The verdict on what was seen."""
    try:
        sane(seen, may_fail=case.may_fail)
        case.check(seen)
    except Skipped as skipped:
        return Result(case=case, verdict=Verdict.SKIPPED, seen=str(skipped))
    except Wrong as wrong:
        return Result(case=case, verdict=Verdict.WRONG, seen=str(wrong))
    return Result(case=case, verdict=Verdict.OK, seen=seen.summary())


def _asked_to_wait(seen: Seen) -> float | None:
    """Seconds, where the last answer is a 429 that says how many."""
    for reply in seen.replies[-1:]:
        for answer in reply.answers:
            if answer.status == 429 and (answer.header("retry-after") or "").isdigit():
                return float(answer.header("retry-after") or 0)
    return None
