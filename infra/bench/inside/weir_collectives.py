"""How long the collectives of tensor parallelism take, in every worker process of an engine.

Imported by vLLM in the engine's environment only (`--worker-extension-cls weir_collectives.Timed`); started by bench
`tp`. What is timed includes the wait for the slowest rank, as a step pays for that too. A line for each model step: its
whole time, the part in collectives, how many there were, how many tokens it had. vLLM does not promise what is wrapped
here: where it has changed, the bench fails.
"""

import json
import os
from time import perf_counter
from typing import Any

from vllm.distributed.parallel_state import GroupCoordinator  # type: ignore[import-not-found]
from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # type: ignore[import-not-found]

FOLDER = os.environ["WEIR_COLLECTIVES"]
_spent = {"seconds": 0.0, "calls": 0}


def _time_collective(name: str) -> None:
    whole = getattr(GroupCoordinator, name)

    def timed(self: Any, *args: Any, **options: Any) -> Any:
        began = perf_counter()
        try:
            return whole(self, *args, **options)
        finally:
            _spent["seconds"] += perf_counter() - began
            _spent["calls"] += 1

    setattr(GroupCoordinator, name, timed)


def _time_steps() -> None:
    whole = CPUModelRunner.execute_model

    def timed(self: Any, output: Any, *args: Any, **options: Any) -> Any:
        before, began = dict(_spent), perf_counter()
        try:
            return whole(self, output, *args, **options)
        finally:
            line = {
                "seconds": perf_counter() - began,
                "collectives": _spent["seconds"] - before["seconds"],
                "calls": _spent["calls"] - before["calls"],
                "tokens": output.total_num_scheduled_tokens,
            }
            with open(f"{FOLDER}/{os.getpid()}.jsonl", "a") as file:  # noqa: PTH123 - within the engine's step
                file.write(json.dumps(line) + "\n")

    CPUModelRunner.execute_model = timed


for _name in ("_all_reduce_out_place", "all_gather"):
    _time_collective(_name)
_time_steps()


class Timed:
    """Adds nothing to a worker: the import did."""
