"""End-to-end tests: the whole platform, started by the command a user types, and only clients of its public API.

Two platforms at most: `platform` with the simulated engine (up in seconds), `real_platform` with vLLM for the tests
marked `engine`; each started once, when the first test asks, in a state directory of its own, and stopped at the end.
A failed test prints the ends of the platform's logs. Fault tests run last, because they kill what the others use.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.bench.instance import Instance, InstanceFailed, private_instance
from infra.setup.sdk import Clients, ensure_clients
from tests.e2e.api import Api

HERE = Path(__file__).resolve().parent
TEST_SECONDS = 300  # with the start of the platform, which the first test waits for
ENGINE_TEST_SECONDS = 1_800  # with the making of the engine's environment, where it is not cached
# A state directory whose platform already runs: it is used as it is, and left running (for work on these tests).
GIVEN = {"simulated": "WEIR_TEST_HOME", "vllm": "WEIR_TEST_ENGINE_HOME"}
_RUNNING = pytest.StashKey[list[Instance]]()


@dataclass(frozen=True, slots=True)
class Platform:
    """A running platform and what demo.json says of it."""

    instance: Instance
    demo: dict[str, Any]
    model: str
    started_at: int  # Unix seconds, before its first request of these tests
    is_real: bool

    @property
    def base_url(self) -> str:
        return str(self.demo["base_url"])

    @property
    def api(self) -> Api:
        """The public API as the first demo tenant."""
        return Api(self.base_url, str(self.demo["api_key"]))

    @property
    def other_api(self) -> Api:
        """The public API as the second demo tenant."""
        return Api(self.base_url, str(self.demo["other_api_key"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time limits that allow for a start, and faults last."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        engine = item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.timeout(ENGINE_TEST_SECONDS if engine else TEST_SECONDS))
    last = [item for item in ours if item.path.name == "test_faults.py"]
    items[:] = [item for item in items if item not in last] + last


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and HERE in item.path.parents:
        for instance in item.config.stash.get(_RUNNING, []):
            report.sections.append((f"logs of {instance.home.name}", instance.log_tails()))
    return report


@pytest.fixture(scope="session")
def platform(pytestconfig: pytest.Config) -> Iterator[Platform]:
    """The platform with the simulated engine."""
    yield from _run(pytestconfig, engine="simulated")


@pytest.fixture(scope="session")
def real_platform(pytestconfig: pytest.Config) -> Iterator[Platform]:
    """The platform with real vLLM. Fails with what `up` said where it cannot run."""
    yield from _run(pytestconfig, engine="vllm")


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.engine)])
def each_platform(request: pytest.FixtureRequest) -> Platform:
    """The one, then the other: for what must be true of both."""
    found: Platform = request.getfixturevalue("real_platform" if request.param == "vllm" else "platform")
    return found


@pytest.fixture(scope="session")
def clients() -> Clients:
    """Interpreters for the other SDKs, made once per user."""
    return ensure_clients()


def _run(config: pytest.Config, *, engine: str) -> Iterator[Platform]:
    started_at = int(time.time())  # noqa: TID251 - the window of the usage report begins here
    given = os.environ.get(GIVEN[engine])
    with ExitStack() as stack:
        try:
            instance = Instance(Path(given)) if given else stack.enter_context(private_instance(engine=engine))
        except InstanceFailed as failure:
            sys.stdout.write(f"{failure}\n")
            # Once is enough: pytest repeats what is raised here for every test of the session.
            pytest.fail(f"no platform with the engine {engine}: see the output of the first test", pytrace=False)
        running = config.stash.setdefault(_RUNNING, [])
        running.append(instance)
        demo = instance.demo
        api = Api(str(demo["base_url"]), str(demo["api_key"]))
        listed = json.loads(api.get("/models").text)
        model = str(listed["data"][0]["id"])
        yield Platform(instance, demo, model, started_at, is_real=engine == "vllm")
        running.remove(instance)
