"""The platform with two gateway processes, once for all tests here."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from tests.factories.gateways import TwoGateways, two_gateways


@pytest.fixture(scope="package")
def pair() -> Iterator[TwoGateways]:
    with two_gateways() as running:
        yield running


@pytest.fixture
async def its_redis(pair: TwoGateways) -> AsyncIterator[Redis]:
    """A client of the platform's own Redis."""
    client = pair.redis()
    yield client
    await client.aclose(close_connection_pool=True)
