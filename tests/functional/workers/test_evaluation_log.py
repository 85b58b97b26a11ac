"""Evaluation logs on a real S3 server, and with none that answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import orjson
import pytest

from contracts.outcomes import Outcome
from fairqueue.messages import usage_from_stream
from stores.objects import ObjectMissing, Objects, ObjectStoreError
from tests.functional.workers.cast import chat, ticket
from workers.uploads import NICENESS, Uploader

T = TypeVar("T")


async def fetched(objects: Objects, key: str) -> bytes:
    async with asyncio.timeout(20):
        while True:
            try:
                return await asyncio.to_thread(objects.get, key=key)
            except ObjectMissing:
                await asyncio.sleep(0.05)


class TestEvaluationLog:
    async def test_keeps_prompt_and_answer_of_a_tenant_that_opted_in(self, pool, start, s3_url):
        asked = await pool.submit(ticket(chat("say: for the record"), evaluation_log=True))
        other = await pool.submit(ticket(chat("say: off the record")))
        async with start(s3_url=s3_url):
            await pool.final(asked.request_id)
            await pool.final(other.request_id)
            usage = {u.request_id: u for u in (usage_from_stream(fields) for fields in await pool.usage())}
            key = usage[asked.request_id].log_key
            document = orjson.loads(await fetched(Objects.open(s3_url), key))
        assert key.endswith(f"/acme/2027/01/15/{asked.request_id}.json")
        assert document["answer"] == [{"finish_reason": "stop", "content": "for the record"}]
        assert document["request"]["messages"][0]["content"] == "say: for the record"
        assert document["outcome"] == "ok"
        assert usage[other.request_id].log_key == ""

    async def test_waits_on_disk_while_the_store_is_away(self, pool, start, tmp_path):
        asked = await pool.submit(ticket(chat("say: keep me"), evaluation_log=True))
        async with start(s3_url="http://key:secret@127.0.0.1:1/weir"):
            assert (await pool.final(asked.request_id)).outcome is Outcome.OK
        [spooled] = (tmp_path / "spool" / "evaluation" / "w1").glob("*.json")
        assert unquote(spooled.name).endswith(f"{asked.request_id}.json")
        assert orjson.loads(spooled.read_bytes())["answer"][0]["content"] == "keep me"
        [usage] = [usage_from_stream(fields) for fields in await pool.usage()]
        assert usage.log_key == unquote(spooled.name)

    async def test_is_dropped_and_counted_when_the_spool_is_full(self, pool, start, s3_url):
        asked = await pool.submit(ticket(chat("say: too much"), evaluation_log=True))
        async with start(s3_url=s3_url, evaluation_spool_bytes=10) as worker:
            assert (await pool.final(asked.request_id)).outcome is Outcome.OK
            assert worker._ports.evaluation.dropped == 1
        [usage] = [usage_from_stream(fields) for fields in await pool.usage()]
        assert usage.log_key == ""


class TestUploader:
    async def test_empties_the_spool_into_the_store_below_the_serving(self, s3_url, tmp_path):
        uploader = Uploader(s3_url=s3_url)
        paths = spooled(tmp_path, "a", "b")
        await uploader.move(paths)
        assert os.getpriority(os.PRIO_PROCESS, uploader.pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
        await uploader.close()
        assert [Objects.open(s3_url).get(key=f"evaluation/{name}.json") for name in "ab"] == [b'"a"', b'"b"']
        assert not any(path.exists() for path in paths)

    async def test_keeps_what_the_store_refuses_and_tells(self, tmp_path):
        uploader = Uploader(s3_url="http://key:secret@127.0.0.1:1/weir")
        [path] = spooled(tmp_path, "a")
        with pytest.raises(ObjectStoreError, match="cannot be written"):
            await uploader.move([path])
        await uploader.close()
        assert path.read_bytes() == b'"a"'

    async def test_is_started_again_after_it_was_killed(self, s3_url, tmp_path):
        uploader = Uploader(s3_url=s3_url)
        await uploader.move(spooled(tmp_path, "first"))
        os.kill(uploader.pid, signal.SIGKILL)
        second = spooled(tmp_path, "second")
        with pytest.raises(ObjectStoreError, match="process failed"):
            await uploader.move(second)
        await uploader.move(second)
        await uploader.close()
        assert Objects.open(s3_url).get(key="evaluation/second.json") == b'"second"'

    async def test_ends_with_a_worker_that_is_killed(self, pool, spawn, s3_url):
        asked = await pool.submit(ticket(chat("say: for the record"), evaluation_log=True))
        async with spawn(S3_URL=s3_url) as worker:
            await pool.final(asked.request_id)
            uploaders = await until(lambda: processes_of("workers.uploads", parent=worker.pid))
            worker.kill()
            await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in uploaders))


async def until(look: Callable[[], T]) -> T:
    """What `look` finds, once it finds something: the kernel's table of processes tells nobody of its changes."""
    async with asyncio.timeout(20):
        while not (found := look()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def spooled(folder: Path, *names: str) -> list[Path]:
    paths = [folder / quote(f"evaluation/{name}.json", safe="") for name in names]
    for path, name in zip(paths, names, strict=True):
        path.write_bytes(orjson.dumps(name))
    return paths


def processes_of(module: str, *, parent: int) -> list[int]:
    """Pids of the children of `parent` that run `module`."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
