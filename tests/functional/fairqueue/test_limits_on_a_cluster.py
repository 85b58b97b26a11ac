"""The suites of the holds again, on a cluster, through a node that has not the tenants' slots."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stores.redis import Client, open_redis
from tests.functional.fairqueue.cluster import Cluster
from tests.functional.tenants.cast import ACME
from tests.functional.tenants.test_guards import *  # noqa: F403 - the tests of this module
from tests.functional.tenants.test_hold_ends import *  # noqa: F403
from tests.functional.tenants.test_holds import *  # noqa: F403


@pytest.fixture
async def redis(cluster: Cluster) -> AsyncIterator[Client]:
    cluster.empty()
    client = open_redis(cluster.urls_without(f"{{t:{ACME}}}")[0])
    yield client
    await client.aclose(close_connection_pool=True)
