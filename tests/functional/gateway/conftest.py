"""One gateway process's worth of parts under uvicorn, on an empty Valkey."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from openai import AsyncOpenAI
from redis.asyncio import Redis

from fairqueue.keys import mailbox_channel
from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from gateway.edge.app import InferenceApp
from gateway.edge.http import HttpProtocol
from gateway.edge.websocket import WebSocketProtocol
from gateway.kept import KeptRequests
from gateway.realtime.consumer import RealtimeConsumer
from gateway.services import GatewayServices, GatewaySettings, Receipts, ServedModel
from gateway.stream.mailbox import Mailbox
from gateway.surface import limits
from gateway.tokenizer import PromptTokenizer
from stores.subscription import Subscriber
from stores.system import SystemClock
from tenants.auth.resolve import Resolver
from tenants.limits.buckets import Limits
from tests.functional.gateway.cast import CARD, CONTEXT, MALLORY, PEPPER, POOL, Directory, HandWorker
from tests.unit.gateway.toy import write_model

GATEWAY = "gw-test"


@dataclass
class Gateway:
    """A running gateway, the keys of its cast, and the worker behind it."""

    url: str
    key: str
    mallory: str
    services: GatewayServices
    directory: Directory
    worker: HandWorker
    http: httpx.AsyncClient
    sdk: AsyncOpenAI

    @property
    def queue(self) -> FairQueue:
        return self.services.queue_of(POOL)

    def auth(self, key: str | None = None) -> dict[str, str]:
        return {"authorization": f"Bearer {key or self.key}"}

    async def hold_state(self, request_id: str, tenant: str = "acme") -> str | None:
        state = await self.services.redis.hget(f"w:{{t:{tenant}}}:hold:{request_id}", "st")
        return None if state is None else state.decode()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    return PromptTokenizer.load(write_model(tmp_path_factory.mktemp("toy")))


@pytest.fixture
def settings() -> GatewaySettings:
    """A stream's head comes at once, so that a test sees a request wait; `TestHead` is about the time it is held."""
    return GatewaySettings(worker_probe_seconds=0.0, head_hold_seconds=0.0, origins=("https://console.example",))


@pytest.fixture
def http_protocol() -> type[HttpProtocol]:
    """How connections are held; a test of deadlines shortens them."""
    return HttpProtocol


@pytest.fixture
def kept() -> KeptRequests | None:
    """Where background requests are kept; test_background.py has a real one."""
    return None


@pytest.fixture
def receipts() -> Receipts | None:
    """Who signs receipts; test_proofs.py has one."""
    return None


@pytest.fixture
async def gateway(
    redis: Redis,
    valkey_url: str,
    tokenizer: PromptTokenizer,
    settings: GatewaySettings,
    http_protocol: type[HttpProtocol],
    kept: KeptRequests | None,
    receipts: Receipts | None,
) -> AsyncIterator[Gateway]:
    directory = Directory(served=ServedModel(card=CARD, tokenizer=tokenizer))
    queue, clock, holds = FairQueue(redis, POOL, QueueBounds()), SystemClock(), Limits(redis)
    services = GatewayServices(
        gateway_id=GATEWAY, clock=clock, redis=redis,
        mailbox=Mailbox(channel=mailbox_channel(GATEWAY), listen=Subscriber(valkey_url).listen),
        limits=holds, queue_of=lambda _: queue,
        resolver=Resolver(directory.load_context, clock=clock, peppers=(PEPPER,)),
        epochs=directory, catalogue=directory, prices=directory, policies=directory, usage=directory,
        cache_salt_secret=b"s" * 32, settings=settings, kept=kept, receipts=receipts,
    )  # fmt: skip
    worker = HandWorker(redis=redis, queue=queue, limits=holds)
    await worker.beat()
    async with serving(services, http=http_protocol) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        key = directory.issue(CONTEXT)
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=20) as sdk:
            yield Gateway(url, key, directory.issue(MALLORY), services, directory, worker, http, sdk)


class serving:  # noqa: N801 - reads as `async with serving(services)`
    """Runs services and server until the block ends."""

    def __init__(self, services: GatewayServices, *, http: type[HttpProtocol] = HttpProtocol) -> None:
        self._services = services
        inference, realtime = InferenceApp(services), RealtimeConsumer.as_asgi(services=services)

        async def application(scope: Any, receive: Any, send: Any) -> None:
            await (realtime if scope["type"] == "websocket" else inference)(scope, receive, send)

        config = uvicorn.Config(
            application, lifespan="off", http=http, ws=WebSocketProtocol, access_log=False, log_config=None,
            proxy_headers=False, ws_max_size=2 * limits.REALTIME_FRAME_BYTES_MAX, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._started, self._stopping = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> str:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self._services.run(started=self._started, stopping=self._stopping))
        self._tasks.create_task(self._server.serve(sockets=[listener]))
        await self._started.wait()
        while not self._server.started:  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def __aexit__(self, *failure: Any) -> None:
        self._stopping.set()
        self._server.should_exit = True
        await self._tasks.__aexit__(None, None, None)
