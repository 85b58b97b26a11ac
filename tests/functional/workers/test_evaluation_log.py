"""Evaluation logs on a real S3 server, and with none that answers."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import orjson

from contracts.outcomes import Outcome
from fairqueue.messages import usage_from_stream
from stores.objects import ObjectMissing, Objects
from tests.functional.workers.cast import chat, ticket


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
