"""The catalogue: names from PostgreSQL, configurations from what workers registered; the last answer stands."""

from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from contracts.clock import FakeClock
from contracts.errors import NotFound, Unavailable
from contracts.models import ModelCard
from contracts.wire import encode
from controlplane.catalogue import CatalogueCache
from controlplane.env import ROOT
from gateway.tokenizer import PromptTokenizer
from tests.functional.controlplane.test_console import CARD

TOKENIZER = ROOT / "infra" / "models" / "smollm2-135m-instruct"


def card(model: str) -> ModelCard:
    """Of an engine that makes out no calls, for a model whose template shows no tools."""
    return replace(CARD, model=model, tokenizer_sha256=PromptTokenizer.load(TOKENIZER).sha256, tools=False)


class Offered(dict[str, str]):
    """The database's part: what is offered, as a test sets it."""

    is_away = False

    async def read(self) -> dict[str, str]:
        if self.is_away:
            raise Unavailable("away")
        return dict(self)

    def offer(self, name: str, folder: Path = TOKENIZER) -> None:
        self[name] = str(folder)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def offered() -> Offered:
    return Offered()


@pytest.fixture
def catalogue(redis: Redis, clock: FakeClock, offered: Offered) -> CatalogueCache:
    return CatalogueCache(redis=redis, clock=clock, read_offered=offered.read)


class TestGet:
    async def test_joins_the_offer_with_what_its_engine_registered(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis
    ) -> None:
        offered.offer("toy-1")
        await redis.hset("w:models", "toy-1", encode(card("toy-1")))
        served = await catalogue.get("toy-1")
        assert served.card == card("toy-1")
        assert served.tokenizer.sha256 == served.card.tokenizer_sha256

    async def test_says_that_a_model_calls_no_tools_where_its_template_shows_it_none(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis
    ) -> None:
        offered.offer("toy-1")
        await redis.hset("w:models", "toy-1", encode(replace(card("toy-1"), tools=True)))
        assert (await catalogue.get("toy-1")).card.tools is False

    async def test_knows_no_model_that_is_not_offered_although_an_engine_runs(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis
    ) -> None:
        await redis.hset("w:models", "toy-1", encode(card("toy-1")))
        with pytest.raises(NotFound, match="toy-1"):
            await catalogue.get("toy-1")

    async def test_refuses_for_now_a_model_whose_engine_has_not_registered(
        self, catalogue: CatalogueCache, offered: Offered
    ) -> None:
        offered.offer("toy-1")
        with pytest.raises(Unavailable, match="No engine"):
            await catalogue.get("toy-1")

    async def test_refuses_a_tokenizer_that_is_not_the_engine_s(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis
    ) -> None:
        offered.offer("toy-1")
        await redis.hset("w:models", "toy-1", encode(replace(card("toy-1"), tokenizer_sha256="00")))
        with pytest.raises(Unavailable, match="not its engine's"):
            await catalogue.get("toy-1")

    async def test_refuses_a_folder_without_a_tokenizer(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis, tmp_path: Path
    ) -> None:
        offered.offer("toy-1", tmp_path)
        await redis.hset("w:models", "toy-1", encode(card("toy-1")))
        with pytest.raises(Unavailable, match="cannot be loaded"):
            await catalogue.get("toy-1")

    async def test_keeps_serving_while_the_database_is_away(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis, clock: FakeClock
    ) -> None:
        offered.offer("toy-1")
        await redis.hset("w:models", "toy-1", encode(card("toy-1")))
        await catalogue.get("toy-1")

        offered.is_away = True
        clock.advance(ms=60_000)
        assert (await catalogue.get("toy-1")).card.model == "toy-1"
        with pytest.raises(NotFound):
            await catalogue.get("toy-2")

    async def test_finds_a_new_model_after_a_second(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis, clock: FakeClock
    ) -> None:
        with pytest.raises(NotFound):
            await catalogue.get("toy-1")
        offered.offer("toy-1")
        await redis.hset("w:models", "toy-1", encode(card("toy-1")))
        clock.advance(ms=1_000)
        assert (await catalogue.get("toy-1")).card.model == "toy-1"

    async def test_lists_what_can_be_asked_for_by_name(
        self, catalogue: CatalogueCache, offered: Offered, redis: Redis
    ) -> None:
        for name in ("toy-2", "toy-1", "toy-3"):
            offered.offer(name)
        for name in ("toy-1", "toy-2"):
            await redis.hset("w:models", name, encode(card(name)))
        assert [served.card.model for served in await catalogue.list()] == ["toy-1", "toy-2"]
