"""A plain HTTP client of the public API for tests: every call has a deadline, nothing is retried."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

DEADLINE_SECONDS = 60.0
# Plain HTTP only: an empty context saves a quarter of a second a client, in which httpx would read certificates.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
ERROR_KEYS = {"message", "type", "param", "code"}


@dataclass(frozen=True, slots=True)
class Api:
    """The API at `base_url` (it ends in /v1) as the owner of one key."""

    base_url: str
    key: str | None

    @property
    def root(self) -> str:
        """Scheme, host and port."""
        return self.base_url.removesuffix("/v1")

    def headers(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        given = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return {**given, **(extra or {})}

    def get(self, path: str, *, params: Mapping[str, Any] | None = None) -> httpx.Response:
        return self.request("GET", path, params=dict(params or {}))

    def post(self, path: str, document: Any = None, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self.request("POST", path, headers=headers, json=document)

    def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """One answer, never following a redirect."""
        with httpx.Client(timeout=DEADLINE_SECONDS, follow_redirects=False, verify=NO_TLS) as client:
            return client.request(method, self.base_url + path, headers=self.headers(headers), **options)

    def events(self, path: str, document: Any) -> Iterator[Any]:
        """The events of one stream, parsed; `[DONE]` as the string. Closing the iterator drops the connection."""
        with (
            httpx.Client(timeout=DEADLINE_SECONDS, verify=NO_TLS) as client,
            client.stream("POST", self.base_url + path, json=document, headers=self.headers()) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise AssertionError(f"{response.status_code}: {response.text}")
            for line in response.iter_lines():
                if line.startswith("data:"):
                    data = line[5:].strip()
                    yield data if data == "[DONE]" else json.loads(data)

    def ended(self, request_id: str, *, deadline: float = 20.0) -> dict[str, Any]:
        """GET /requests/{id} once it has ended and its cost is settled. Fails when the deadline is over."""
        until = time.monotonic() + deadline
        while True:
            response = self.get(f"/requests/{request_id}")
            found: dict[str, Any] = response.json()
            if response.status_code == 200 and found["status"] == "ended" and found["usage"] is not None:
                return found
            if time.monotonic() > until:
                raise AssertionError(f"request {request_id} is still {response.status_code} {response.text[:300]}")
            time.sleep(0.05)


def bare_id(object_id: str) -> str:
    """`chatcmpl-<request id>` without its prefix."""
    return object_id.removeprefix("chatcmpl-").removeprefix("cmpl-")


def assert_is_error(response: httpx.Response, *, status: int | tuple[int, ...], param: str | None = None) -> Any:
    """OpenAI's error object with this status, without a word of our insides. Returns the object."""
    wanted = (status,) if isinstance(status, int) else status
    assert response.status_code in wanted, f"{response.status_code}: {response.text[:500]}"
    assert response.headers["content-type"].startswith("application/json")
    document = response.json()
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == ERROR_KEYS
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["code"], str)
    assert isinstance(error["type"], str)
    for inside in ("Traceback", 'File "', ".py", "Exception", "None"):
        assert inside not in error["message"]
    if param is not None:
        assert error["param"] == param, error
    return error
