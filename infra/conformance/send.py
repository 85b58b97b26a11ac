"""Sends one case's requests in turn and collects the replies. Called by `runner.py`.

Well-formed requests go through httpx, which never retries and never follows a redirect here; the rest through `wire`.
"""

from __future__ import annotations

import asyncio
import ssl

import httpx

from infra.conformance import wire
from infra.conformance.case import ANSWER_SECONDS, Answer, Case, Http, Reply, Seen, Wire
from infra.conformance.target import Target

_CONNECTIONS = 16


class Sender:
    """The way to one server. An async context manager; safe for many cases at once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        context = ssl.create_default_context() if target.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.AsyncClient(
            timeout=ANSWER_SECONDS,
            follow_redirects=False,
            trust_env=False,
            verify=context,
            limits=httpx.Limits(max_connections=_CONNECTIONS),
        )

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def run(self, case: Case) -> Seen:
        """What the server answers to all steps of a case. Raises Skipped, Wrong (from a step), OSError."""
        seen = Seen(target=self.target, replies=())
        for step in case.steps:
            request = step if isinstance(step, Http | Wire) else step(seen)
            reply = await (self._http(request) if isinstance(request, Http) else wire.exchange(request, self.target))
            seen = Seen(target=self.target, replies=(*seen.replies, reply))
        return seen

    async def _http(self, request: Http) -> Reply:
        content = request.content if request.document is None else self.target.document(request.document)
        headers = list(request.headers)
        if request.content_type is not None and content is not None:
            headers.append(("Content-Type", request.content_type))
        secret = self.target.secret(request.key)
        if secret is not None:
            headers.append(("Authorization", f"Bearer {secret}"))
        built = self._client.build_request(
            request.method,
            self.target.url(self.target.fill(request.path.encode()).decode()),
            headers=headers,
            content=None if content is None else self.target.fill(content),
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._answer(built, request)
        except (TimeoutError, httpx.TimeoutException):
            return Reply(late=True)
        except httpx.RemoteProtocolError:
            return Reply(closed=True)
        except httpx.TransportError as error:
            raise OSError(f"{request.method} {request.path}: {error or type(error).__name__}") from error

    async def _answer(self, built: httpx.Request, request: Http) -> Reply:
        response = await self._client.send(built, stream=True)
        body, complete, pieces = bytearray(), True, 0
        try:
            async for piece in response.aiter_bytes():
                body += piece
                pieces += 1
                if request.leave_after is not None and len(body) >= request.leave_after:
                    complete = False
                    break
        finally:
            await response.aclose()
        answer = Answer(
            status=response.status_code,
            headers=tuple(response.headers.multi_items()),
            body=bytes(body),
            complete=complete,
            pieces=pieces,
        )
        return Reply(answers=(answer,))
