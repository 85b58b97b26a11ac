"""Local mode: one real chat request over the public API, shown as it streams, and how to send the next one.

Called by `manage.py up` once everything serves. Invariant: every number shown was measured here or sent by the
platform in this request; nothing is a constant of a brochure.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

PROMPT = "In two short sentences: what does a weir do in a river?"
MODEL = "smollm2-135m-instruct"
_READY_SECONDS = 60.0
_REQUEST_SECONDS = 120.0


class DemoFailed(Exception):
    """The platform runs, but did not answer as it should; the text says how."""


@dataclass(slots=True)
class Measured:
    """One streamed answer. Times in seconds by this process's clock."""

    ttft: float | None = None
    seconds: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first; None when there were too few to tell."""
        tokens = int(self.usage.get("completion_tokens", 0))
        if self.ttft is None or tokens < 2 or self.seconds <= self.ttft:
            return None
        return (tokens - 1) / (self.seconds - self.ttft)

    @property
    def cached_tokens(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def parse_events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON of each event of an OpenAI stream, up to `[DONE]`. Raises DemoFailed for an error event."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise DemoFailed(str(event["error"].get("message")))
        yield event
    raise DemoFailed("the stream ended without [DONE]")


class DemoStopped(Exception):
    """Somebody wants the platform to stop: there is nothing left to show."""


def wait_until_ready(*, base_url: str, api_key: str, model: str, stopped: threading.Event) -> None:
    """Waits until the gateway finds all it needs, and offers the model whose engine has just come up.

    Raises DemoFailed after a minute, DemoStopped once `stopped` is set.
    """
    until = time.monotonic() + _READY_SECONDS
    _wait_for(f"{base_url.removesuffix('/v1')}/health/ready", {}, until, stopped)
    _wait_for(f"{base_url}/models/{model}", {"Authorization": f"Bearer {api_key}"}, until, stopped)


def _wait_for(url: str, headers: dict[str, str], until: float, stopped: threading.Event) -> None:
    said = "no answer"
    while time.monotonic() < until:
        try:
            answer = httpx.get(url, headers=headers, timeout=5.0)
        except httpx.HTTPError as error:
            said = type(error).__name__
        else:
            if answer.status_code == httpx.codes.OK:
                return
            said = f"{answer.status_code} {answer.text.strip()[:300]}"
        if stopped.wait(0.2):
            raise DemoStopped
    raise DemoFailed(f"{url} says after {_READY_SECONDS:.0f} s: {said}")


def ask(*, console: Console, base_url: str, api_key: str, model: str, stopped: threading.Event) -> Measured:
    """Sends the request and prints the answer as it comes. Raises DemoFailed, DemoStopped."""
    measured = Measured()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 80,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    console.print(f"\n[bold]you[/]    {PROMPT}")
    console.print("[bold]model[/]  ", end="")
    began = time.monotonic()
    try:
        with httpx.stream(
            "POST",
            f"{base_url}/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=_REQUEST_SECONDS,
        ) as answer:
            if answer.status_code != httpx.codes.OK:
                raise DemoFailed(f"{answer.status_code} {answer.read().decode(errors='replace')[:500]}")
            for event in parse_events(answer.iter_lines()):
                if stopped.is_set():
                    raise DemoStopped
                _show(console, measured, event, began)
    except httpx.HTTPError as error:
        if stopped.is_set():
            raise DemoStopped from error
        raise DemoFailed(f"{type(error).__name__}: {error}") from error
    measured.seconds = time.monotonic() - began
    console.print("\n")
    return measured


def _show(console: Console, measured: Measured, event: dict[str, Any], began: float) -> None:
    measured.usage = event.get("usage") or measured.usage
    for choice in event.get("choices", ()):
        text = (choice.get("delta") or {}).get("content")
        if text:
            measured.ttft = measured.ttft if measured.ttft is not None else time.monotonic() - began
            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)


def print_panel(*, console: Console, demo: dict[str, Any], measured: Measured | None) -> None:
    """What was measured, and how to go on."""
    if measured is not None:
        console.print(_numbers(measured), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("base URL", demo["base_url"])
    table.add_row("key", demo["api_key"] or "lost with demo.json")
    table.add_row("admin", f"{demo['admin_url']}   {demo['admin_user']} / {demo['admin_password']}")
    console.print(Panel(table, title="Weir serves", title_align="left", expand=False), soft_wrap=False)
    content = '{"role": "user", "content": "Hello"}'
    model = demo.get("model", MODEL)
    body = f'{{"model": "{model}", "messages": [{content}]}}'
    # Outside the panel and unwrapped, so that they can be copied.
    for line in (
        f"curl {demo['base_url']}/chat/completions -H 'Authorization: Bearer {demo['api_key']}' "
        f"-H 'Content-Type: application/json' -d '{body}'",
        f"{shlex.quote(sys.executable)} -c \"from openai import OpenAI; print(OpenAI(base_url='{demo['base_url']}', "
        f"api_key='{demo['api_key']}').chat.completions.create(model='{model}', "
        "messages=[{'role': 'user', 'content': 'Hello'}]).choices[0].message.content)\"",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _numbers(measured: Measured) -> str:
    rate = measured.tokens_per_second
    usage = measured.usage
    parts = [
        f"first token {measured.ttft * 1000:.0f} ms" if measured.ttft is not None else "no token",
        f"{rate:.1f} tokens/s" if rate is not None else "too short for a rate",
        f"{usage.get('prompt_tokens')} prompt + {usage.get('completion_tokens')} completion tokens",
        f"{measured.cached_tokens} cached",
        f"cost {usage.get('cost', 'not sent')}",
    ]
    return "[dim]" + "  ·  ".join(parts) + "[/]"
