"""The server under test, and how its address, key and model get into a case's request.

Made by `manage.py conformance`; used by the senders. Invariant: placeholders are replaced in bytes that this suite
wrote, never in an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

QUESTION = "Name three rivers of Europe, with a few words about each."


class BadTarget(ValueError):
    """The base URL is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send, as whom, and for which model. `prefix` is the base URL's path, without a slash at its end."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str
    other_key: str | None
    model: str

    @property
    def authority(self) -> str:
        """What stands in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def url(self, path: str) -> str:
        """A path under the base URL, or from the root where it begins with `root:`."""
        if path.startswith("root:"):
            return self.root + path.removeprefix("root:")
        return self.root + self.prefix + path

    def secret(self, whose: str | None) -> str | None:
        """The key of `own`, `other`, or none."""
        return {None: None, "own": self.key, "other": self.other_key}[whose]

    def chat(self) -> bytes:
        """A good chat request, as compact JSON."""
        messages = [{"role": "user", "content": QUESTION}]
        return _compact({"model": self.model, "messages": messages, "max_tokens": 4})

    def document(self, document: Mapping[str, Any]) -> bytes:
        """A document as JSON in ASCII, with the model in its place. Lone surrogates stay as escapes."""
        return _compact({"model": self.model, **document})

    def fill(self, template: bytes) -> bytes:
        """Replaces <HOST>, <V1>, <KEY>, <MODEL>, <CHAT>, <CHUNKS>, <OPEN> (no last chunk), <NEXT>, then <LENGTH>.

        The length is that of all that follows the first empty line.
        """
        chat = self.chat()
        follow_up = (
            f"GET {self.prefix}/models HTTP/1.1\r\nHost: {self.authority}\r\nAuthorization: Bearer {self.key}\r\n\r\n"
        )
        places = {
            b"<CHUNKS>": b"<OPEN>0\r\n\r\n",
            b"<OPEN>": b"%x\r\n%b\r\n" % (len(chat), chat),
            b"<CHAT>": chat,
            b"<NEXT>": follow_up.encode(),
            b"<V1>": self.prefix.encode(),
            b"<HOST>": self.authority.encode(),
            b"<KEY>": self.key.encode(),
            b"<MODEL>": self.model.encode(),
        }
        for place, value in places.items():
            template = template.replace(place, value)
        if b"<LENGTH>" in template:
            _, _, body = template.partition(b"\r\n\r\n")
            template = template.replace(b"<LENGTH>", b"%d" % len(body))
        return template


def _compact(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def parse_base_url(base_url: str, *, key: str, other_key: str | None, model: str) -> Target:
    """The target at this URL. Raises BadTarget."""
    parts = urlsplit(base_url)
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (KeyError, ValueError) as error:
        raise BadTarget(f"{base_url} is not an http or https URL") from error
    if not parts.hostname or parts.query or parts.fragment or parts.username:
        raise BadTarget(f"{base_url} must be scheme, host, port and path only, such as http://127.0.0.1:8080/v1")
    return Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        prefix=parts.path.rstrip("/"),
        key=key,
        other_key=other_key,
        model=model,
    )
