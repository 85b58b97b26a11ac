"""The benches there are, and how each is run. `manage.py bench` reads it; a new bench is one entry here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controlplane.local.children import NotReady
from controlplane.local.model import MODEL
from infra.bench import (
    admission,
    cancel,
    fairness,
    gateway,
    metering,
    overhead,
    queue,
    routing,
    safety,
    slo,
    soak,
    stream,
)
from infra.bench.gateway_stage import gateway_stage
from infra.bench.instance import Instance
from infra.bench.litellm_proxy import ensure_proxy, locked_version
from infra.bench.load import Refused, Target, get_json
from infra.bench.output import Measure
from infra.bench.real import batching, paging, speculative, tensor
from infra.bench.real.engine import EngineAway
from infra.bench.record import machine_rows, model_rows
from infra.bench.sse import BadAnswer
from infra.bench.store import private_valkey
from infra.bench.stream_stage import inline_platform, redis_of, stage
from infra.bench.traces import NoTrace
from infra.setup.bootstrap import SetupFailed
from infra.sim.fairness import RULES
from infra.sim.routing.run import POLICIES
from infra.sim.routing.workloads import NoPrefixes
from stores.clickhouse import ClickHouseError

Rows = Sequence[tuple[str, str]]
_LOAD = ("requests", "concurrency", "max_tokens", "prompt_words")


class BenchFailed(Exception):
    """The bench did not run whole; the text says what did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says. None = the bench's own default."""

    engine: str
    requests: int | None
    concurrency: int | None
    max_tokens: int | None
    prompt_words: int | None
    traces: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A bench that ran whole: its lines, and the record by section. `wrong`: what must not be, told after them."""

    measures: Sequence[Measure]
    record: Mapping[str, Rows]
    wrong: str = ""


Advance = Callable[[int], None]
Start = Callable[[int], Advance]  # told the number of steps, gives what counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One bench: a line on what it measures, and the coroutine that does. `run` raises BenchFailed.

    `platform`: it measures a platform that runs. One without gets None, and starts the store that it needs.
    """

    name: str
    about: str
    run: Callable[[Any, Options, Start], Coroutine[Any, Any, Finished]]
    platform: bool = True


async def engine_of(instance: Instance) -> str:
    """The kind of engine behind a platform's first model, as its own API tells. Raises Refused, OSError."""
    _, card = await _first_model(instance)
    return str(card["engine"])


async def _first_model(instance: Instance) -> tuple[str, dict[str, Any]]:
    """The name of a platform's first model and its card. Raises Refused, OSError."""
    target = instance.platform_target(model="")
    model = await _first_name(target)
    return model, await get_json(target, f"/v1/models/{model}")


async def _first_name(target: Target) -> str:
    return str((await get_json(target, "/v1/models"))["data"][0]["id"])


async def run_overhead(instance: Instance, options: Options, start: Start) -> Finished:
    """Bench `overhead` on a platform that runs. Raises BenchFailed when a request failed."""
    plan = _given(overhead.Plan(), _named(options, *_LOAD))
    model, card = await _first_model(instance)
    inner = await _first_name(instance.engine_target(model=""))
    found = await overhead.run(
        direct=instance.engine_target(model=inner),
        weir=instance.platform_target(model=model),
        bare=instance.unguarded_target(model=model),
        plan=plan,
        advance=start(plan.steps),
    )
    failures = found.failures()
    if failures:
        raise BenchFailed(f"{len(failures)} requests failed, the first: {failures[0]}")
    lines = overhead.measures(found, engine=options.engine)
    record: dict[str, Rows] = {"machine": machine_rows(), "model": model_rows(card), "engine": found.occupancy.rows()}
    for side in (found.direct, found.weir, found.bare):
        for load in side.loads(plan):
            record[f"{side.target.name}, {load.name}"] = load.rows()
    record["aims"] = overhead.verdict_rows(found, lines)
    return Finished(measures=lines, record=record)


async def run_cancel(instance: Instance, options: Options, start: Start) -> Finished:
    """Bench `cancel` on a platform that runs. Raises BenchFailed when the engine was not free of a client in time."""
    plan = _given(cancel.Plan(), _named(options, "requests", "max_tokens", "prompt_words"))
    model, card = await _first_model(instance)
    inner = await _first_name(instance.engine_target(model=""))
    try:
        found = await cancel.run(
            engine=instance.engine_target(model=inner),
            weir=instance.platform_target(model=model),
            plan=plan,
            advance=start(plan.steps),
        )
    except* (cancel.NotFreed, BadAnswer) as failures:
        raise BenchFailed("; ".join(map(str, leaves(failures)))) from failures
    lines = cancel.measures(found, engine=options.engine)
    record = {"machine": machine_rows(), "model": model_rows(card)}
    return Finished(measures=lines, record=record, wrong=cancel.too_slow(lines))


async def run_admission(instance: Instance, options: Options, start: Start) -> Finished:
    """Bench `admission` on a platform that runs. Raises BenchFailed when a probe did."""
    plan = _given(admission.Plan(), _named(options, *_LOAD))
    model, card = await _first_model(instance)
    instance.unguarded_target(model=model)  # makes the bench's own tenant, whose keys are tried and revoked
    record: dict[str, Rows] = {"machine": machine_rows(), "model": model_rows(card)}
    try:
        found = await admission.run(
            instance=instance, target=instance.platform_target(model=model), plan=plan, advance=start(plan.steps)
        )
    except* admission.ProbeFailed as failures:
        raise BenchFailed("; ".join(map(str, leaves(failures)))) from failures
    lines = admission.measures(found)
    record["aims"] = admission.verdict_rows(found, lines)
    return Finished(measures=lines, record=record)


async def run_queue(_: None, options: Options, start: Start) -> Finished:
    """Bench `queue` on a store of its own. Raises BenchFailed."""
    plan = _given(queue.Plan(), {"cycles": options.requests, "slots": options.concurrency})
    async with private_valkey() as redis:
        try:
            found = await queue.run(redis=redis, plan=plan, advance=start(plan.steps))
        except* queue.WrongAnswer as failures:
            raise BenchFailed("; ".join(map(str, leaves(failures)))) from failures
        store = await redis.info("server")
    lines = queue.measures(found)
    version = str(store.get("valkey_version") or store.get("redis_version"))
    return Finished(
        measures=lines,
        record={
            "machine": machine_rows(),
            "store": [("version", version), ("durability", "append-only file, synced every second")],
            "aims": queue.verdict_rows(found, lines),
        },
    )


async def run_metering(_: None, options: Options, start: Start) -> Finished:
    """Bench `metering` on stores of its own; `--requests` rows in all. Raises BenchFailed."""
    plan = metering.Plan()
    if options.requests:
        rows = max(options.requests // metering.PARTS, 1) * metering.PARTS
        plan = replace(plan, rows=rows, records=min(plan.records, rows))
    try:
        with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
            async with private_valkey() as redis:
                found = await metering.run(redis=redis, directory=Path(name), plan=plan, advance=start(plan.steps))
    except (metering.WrongCount, ClickHouseError) as error:
        raise BenchFailed(str(error)) from error
    lines = metering.measures(found)
    return Finished(
        measures=lines,
        record={"machine": machine_rows(), "aims": metering.verdict_rows(found, lines)},
    )


async def run_stream(_: None, options: Options, start: Start) -> Finished:
    """Bench `stream` on a platform of its own. Raises BenchFailed, InstanceFailed."""
    plan = stream.Plan()
    if options.concurrency or options.max_tokens:  # one number of streams alone, as for a profile
        streams = options.concurrency or stream.AIMED_STREAMS
        plan = replace(plan, tokens={streams: options.max_tokens or plan.tokens.get(streams, 200)})
    if options.requests:
        plan = replace(plan, rounds=options.requests)
    machine = machine_rows()
    try:
        async with stage() as (weir, peer, events):
            found = await stream.run(weir=weir, peer=peer, events=events, plan=plan, advance=start(plan.steps))
    except NotReady as error:
        raise BenchFailed(str(error)) from error
    lines = stream.measures(found)
    wrong = "; ".join(f"{streams} streams: {why}" for streams, why in found.broken.items())
    return Finished(
        measures=lines,
        record={
            "machine": machine,
            "engine": [("kind", "simulated, inside the worker: one token a step and stream, no cost of its own")],
            "weir": stream.record_rows(found.weir),
            stream.PEER: stream.record_rows(found.peer),
            "aims": stream.verdict_rows(lines),
        },
        wrong=wrong,
    )


async def run_gateway(_: None, options: Options, start: Start) -> Finished:
    """Bench `gateway` on a platform of its own and a proxy of its own. Raises BenchFailed, InstanceFailed."""
    chosen = {"alone": options.requests, "connections": options.concurrency, "stream_tokens": options.max_tokens}
    plan = _given(gateway.Plan(), chosen)
    machine, workers = machine_rows(), len(os.sched_getaffinity(0))
    try:
        environment = ensure_proxy()
        async with gateway_stage(environment, workers=workers) as sides:
            found = await gateway.run(**sides, plan=plan, advance=start(plan.steps))
    except* (gateway.AnswerFailed, SetupFailed, NotReady) as failures:
        raise BenchFailed("; ".join(map(str, leaves(failures)))) from failures
    lines = gateway.measures(found)
    peer = f"{locked_version()}, {workers} processes, a master key, no database, no limits, no guardrails"
    return Finished(
        measures=lines,
        record={
            "machine": machine,
            "upstream": [
                ("kind", "instant mock over HTTP, the same process for both"),
                *gateway.record_rows(found.upstream),
            ],
            "weir": [
                ("features", "keys, limits, guardrails, fair queue, metering, evaluation logs"),
                *gateway.record_rows(found.weir),
            ],
            gateway.PEER: [("version", peer), *gateway.record_rows(found.peer)],
            "aims": gateway.verdict_rows(lines),
        },
    )


async def run_fairness(_: None, options: Options, start: Start) -> Finished:
    """Bench `fairness`: a simulation. Raises BenchFailed for a trace that cannot be read."""
    plan = fairness.Plan(traces=options.traces)
    if options.requests:
        plan = replace(plan, rows=options.requests)
    try:
        cases = fairness.make_cases(plan)
    except (NoTrace, OSError) as error:
        raise BenchFailed(str(error)) from error
    found = fairness.run(plan=plan, cases=cases, advance=start(len(cases) * len(RULES)))
    record: dict[str, Rows] = {"machine": machine_rows()}
    record |= {case.name: fairness.record_rows(found, case) for case in cases}
    return Finished(measures=fairness.measures(found), record=record)


async def run_routing(_: None, options: Options, start: Start) -> Finished:
    """Bench `routing`: a simulation. Raises BenchFailed for a trace that cannot be read."""
    plan = routing.Plan(traces=options.traces)
    if options.requests:
        plan = replace(plan, rows=options.requests)
    try:
        workloads = routing.make_workloads(plan)
    except (NoPrefixes, OSError) as error:
        raise BenchFailed(str(error)) from error
    found = routing.run_all(plan=plan, workloads=workloads, advance=start(len(workloads) * len(POLICIES)))
    record: dict[str, Rows] = {"machine": machine_rows(), "engines": routing.model_rows(plan)}
    record |= {workload.name: routing.record_rows(found, workload) for workload in workloads}
    return Finished(measures=routing.measures(found), record={**record, "aims": routing.verdict_rows(found)})


async def run_soak(_: None, options: Options, start: Start) -> Finished:
    """Bench `soak` on a platform of its own. Raises BenchFailed, InstanceFailed."""
    plan = soak.Plan()
    if options.requests:  # a small one: everything in proportion
        part = min(options.requests / plan.streams, 1.0)
        less = {name: max(int(getattr(plan, name) * part), 10) for name in ("slow", "mute")}
        plan = replace(plan, streams=options.requests, **less)
    if options.concurrency:
        plan = replace(plan, slow=options.concurrency, mute=options.concurrency)
    machine = machine_rows()
    try:
        async with inline_platform() as (instance, worker), redis_of(instance) as redis:
            pids = {"gateway": instance.pid_of("gateway"), "worker": worker, "settler": instance.pid_of("settler")}
            pids["valkey"] = instance.pid_of("valkey")
            target = instance.unguarded_target(model=MODEL)
            found = await soak.run(target=target, pids=pids, redis=redis, plan=plan, advance=start(plan.steps))
    except* (soak.SoakFailed, NotReady) as failures:
        raise BenchFailed("; ".join(map(str, leaves(failures)))) from failures
    record: dict[str, Rows] = {"machine": machine, **soak.record(found)}
    return Finished(measures=soak.measures(found), record=record, wrong="; ".join(found.failures()))


async def run_slo(instance: Instance, options: Options, start: Start) -> Finished:
    """Bench `slo` on a platform that runs. Raises BenchFailed when a request failed."""
    plan = _given(slo.Plan(), _named(options, *_LOAD))
    model, card = await _first_model(instance)
    target = instance.platform_target(model=model)
    found = await slo.run(
        platform=target, engine=instance.engine_target(model=model), plan=plan, advance=start(plan.steps)
    )
    failed = [answer.failure for answer in found.load.answers if answer.failure]
    if failed:
        raise BenchFailed(f"{len(failed)} requests failed, the first: {failed[0]}")
    lines = slo.measures(found)
    record: dict[str, Rows] = {"machine": machine_rows(), "model": model_rows(card), "load": found.load.rows()}
    return Finished(
        measures=lines, record={**record, "engine": found.occupancy.rows(), "aims": slo.verdict_rows(lines)}
    )


async def run_safety(_: None, options: Options, start: Start) -> Finished:
    """Bench `safety` in this process. Raises BenchFailed."""
    chosen = {"requests": options.requests, "tokens": options.max_tokens, "prompt_words": options.prompt_words}
    plan = _given(safety.Plan(), chosen)
    machine = machine_rows()
    try:
        found = await safety.run(plan=plan, advance=start(plan.steps))
    except safety.NotWhole as error:
        raise BenchFailed(str(error)) from error
    return Finished(measures=safety.measures(found), record={"machine": machine, **safety.record(found)})


async def run_speculative(_: None, options: Options, start: Start) -> Finished:
    """Bench `speculative` on engines of its own. Raises BenchFailed."""
    chosen = {"requests": options.requests, "max_tokens": options.max_tokens}
    return await _on_real_engines(speculative, _given(speculative.Plan(), chosen), start)


async def run_batching(_: None, options: Options, start: Start) -> Finished:
    """Bench `batching` on an engine of its own. Raises BenchFailed."""
    chosen = {"requests": options.requests, "places": options.concurrency, "long": options.max_tokens}
    return await _on_real_engines(batching, _given(batching.Plan(), chosen), start)


async def run_paging(_: None, options: Options, start: Start) -> Finished:
    """Bench `paging` on an engine of its own. Raises BenchFailed."""
    chosen = {"requests": options.requests, "max_tokens": options.max_tokens}
    return await _on_real_engines(paging, _given(paging.Plan(), chosen), start)


async def run_tp(_: None, options: Options, start: Start) -> Finished:
    """Bench `tp` on engines of its own. Raises BenchFailed."""
    return await _on_real_engines(tensor, _given(tensor.Plan(), {"max_tokens": options.max_tokens}), start)


def _named(options: Options, *names: str) -> dict[str, int | None]:
    """What the command line says of these, for a plan that calls them the same."""
    return {name: getattr(options, name) for name in names}


def _given(plan: Any, chosen: Mapping[str, int | None]) -> Any:
    """The plan, changed where something was chosen."""
    return replace(plan, **{name: value for name, value in chosen.items() if value is not None})


async def _on_real_engines(bench: Any, plan: Any, start: Start) -> Finished:
    """A bench of infra.bench.real: run, measures, record. Raises BenchFailed."""
    machine = machine_rows()
    try:
        found = await bench.run(plan=plan, advance=start(plan.steps))
    except* (EngineAway, Refused) as failures:
        raise BenchFailed("; ".join(map(str, leaves(failures)))) from failures
    return Finished(measures=bench.measures(found), record={"machine": machine, **bench.record(found)})


def leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """The errors in a group and in the groups in it: what a person is told."""
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from leaves(one)
        else:
            yield one


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(
            name=overhead.NAME,
            about="the engine directly against the platform: time to first token, time between tokens, throughput",
            run=run_overhead,
        ),
        Bench(
            name=cancel.NAME,
            about="how long the engine still works for a client that has gone, through the platform and directly",
            run=run_cancel,
        ),
        Bench(
            name=admission.NAME,
            about="letting a request in: CPU for each, admissions a second, keys a second, revocation to cut",
            run=run_admission,
        ),
        Bench(
            name=queue.NAME,
            about="the fair queue alone: cycles a second by tenants, wake to claim, bytes of a request that waits",
            run=run_queue,
            platform=False,
        ),
        Bench(
            name=metering.NAME,
            about="usage into ClickHouse: records a second, bytes of a row, a month reported, closed and priced anew",
            run=run_metering,
            platform=False,
        ),
        Bench(
            name=stream.NAME,
            about="worker to client: tokens a second and the time between them by open streams, against a bare server",
            run=run_stream,
            platform=False,
        ),
        Bench(
            name=gateway.NAME,
            about="the whole platform against the LiteLLM proxy, both in front of the same instant upstream",
            run=run_gateway,
            platform=False,
        ),
        Bench(
            name=fairness.NAME,
            about="the fair queue's rule against four others on the same arrivals, in a simulation; --trace FILE",
            run=run_fairness,
            platform=False,
        ),
        Bench(
            name=routing.NAME,
            about="which engine takes a request: the queue against seven policies, in a simulation; --trace FILE",
            run=run_routing,
            platform=False,
        ),
        Bench(
            name=safety.NAME,
            about="guardrails alone: added to the first token and between tokens by policy, MB/s by kind of rule",
            run=run_safety,
            platform=False,
        ),
        Bench(
            name=slo.NAME,
            about="the platform's targets under a stated load: pass or miss (also `manage.py slo`)",
            run=run_slo,
        ),
        Bench(
            name=speculative.NAME,
            about="tokens guessed ahead on real vLLM: where it wins, where it loses, what is accepted",
            run=run_speculative,
            platform=False,
        ),
        Bench(
            name=batching.NAME,
            about="continuous against static batching on real vLLM, by lengths of answers",
            run=run_batching,
            platform=False,
        ),
        Bench(
            name=paging.NAME,
            about="room of the KV cache on real vLLM: pages against contiguous allocation, and what requests share",
            run=run_paging,
            platform=False,
        ),
        Bench(
            name=tensor.NAME,
            about="one model over three processes of real vLLM: computing against talking, answers against one's",
            run=run_tp,
            platform=False,
        ),
        Bench(
            name=soak.NAME,
            about="thousands of streams cut, thousands of slow connections: is anything left, are others slower?",
            run=run_soak,
            platform=False,
        ),
    )
}
