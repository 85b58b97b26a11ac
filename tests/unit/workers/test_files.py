"""The attempt log, the model card and the evaluation log's bookkeeping on a real disk."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest

from contracts.jobs import Timings
from contracts.tokens import TokenCounts
from stores.objects import Objects
from tests.factories.jobs import make_record
from tests.unit.workers.cast import TICKET, ticket
from workers.attempts import AttemptLog, read_attempts
from workers.engines.base import EngineFacts
from workers.engines.simulated.toy import write_toy_model
from workers.evaluation import EvaluationLog, evaluation_document, evaluation_key
from workers.registration import ModelFilesError, read_card
from workers.uploads import Uploader

RECORD = make_record(
    TICKET,
    request_id="r1",
    counts=TokenCounts(prompt=5, completion=3),
    delivered_tokens=3,
    timings=Timings(itl={63: 2}),
)


@asynccontextmanager
async def running(log):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(log.run())
        async with asyncio.timeout(10):
            yield log
        task.cancel()


class TestAttemptLog:
    async def test_has_the_line_on_disk_when_append_returns(self, tmp_path):
        path = tmp_path / "a" / "w1.jsonl"
        async with running(AttemptLog(path, bytes_max=10_000, files_max=3)) as log:
            assert await log.append(RECORD, fence="1-x")
            [line] = read_attempts(path)
        assert (line["request_id"], line["fence"], line["v"]) == ("r1", "1-x", 1)
        assert line["counts"] == {"prompt": 5, "cached": 0, "completion": 3, "reasoning": 0}
        assert line["timings"]["itl"] == {"63": 2}

    async def test_rotates_and_drops_the_oldest(self, tmp_path):
        path = tmp_path / "w1.jsonl"
        async with running(AttemptLog(path, bytes_max=1_500, files_max=2)) as log:
            for number in range(10):
                await log.append(replace(RECORD, request_id=f"r{number}"), fence="f")
        names = sorted(entry.name for entry in tmp_path.iterdir())
        assert names == ["w1.jsonl", "w1.jsonl.1"]
        kept = [line["request_id"] for name in reversed(names) for line in read_attempts(tmp_path / name)]
        assert kept == [f"r{number}" for number in range(10 - len(kept), 10)]

    async def test_goes_on_and_counts_when_the_disk_refuses(self, tmp_path):
        path = tmp_path / "w1.jsonl"
        path.mkdir()
        async with running(AttemptLog(path, bytes_max=10**9, files_max=2)) as log:
            assert not await log.append(RECORD, fence="f")
            assert log.failures == 1

    def test_leaves_out_a_line_that_a_crash_cut(self, tmp_path):
        path = tmp_path / "w1.jsonl"
        path.write_bytes(b'{"request_id":"r1"}\n{"request_id":"r')
        assert read_attempts(path) == [{"request_id": "r1"}]


FACTS = EngineFacts(
    served_model="toy", context_tokens=4096, block_tokens=16, blocks=10, cache_dtype="auto", version="1"
)


def card(folder):
    return read_card(folder=folder, model="toy", pool="toy", engine="simulated", facts=FACTS, created_at_ms=7)


class TestModelCard:
    def test_is_read_from_the_models_own_files(self, tmp_path):
        made = card(write_toy_model(tmp_path))
        assert (made.layers, made.heads, made.kv_heads, made.head_size) == (2, 4, 2, 16)
        assert (made.block_tokens, made.context_tokens, made.dtype) == (16, 4096, "bfloat16")
        assert len(made.tokenizer_sha256) == 64
        assert made.weights_sha256 == ""

    def test_names_the_type_that_the_engine_was_told_to_compute_in(self, tmp_path):
        facts = replace(FACTS, dtype="float16")
        made = read_card(
            folder=write_toy_model(tmp_path), model="t", pool="t", engine="vllm", facts=facts, created_at_ms=7
        )
        assert (made.dtype, made.kv_cache_dtype) == ("float16", "float16")

    def test_names_the_cache_type_that_the_engine_chose_by_itself(self, tmp_path):
        assert card(write_toy_model(tmp_path)).kv_cache_dtype == "bfloat16"

    def test_hashes_the_weights_unless_the_manifest_does(self, tmp_path):
        folder = write_toy_model(tmp_path)
        (folder / "model.safetensors").write_bytes(b"weights")
        assert card(folder).weights_sha256 == "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
        manifest = {"repository": "R", "revision": "1", "files": {"model.safetensors": "ab" * 32}}
        (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
        assert card(folder).weights_sha256 == "ab" * 32
        assert (card(folder).repository, card(folder).revision) == ("R", "1")

    def test_names_the_weights_and_the_source_on_record_also_where_no_weights_lie(self, tmp_path):
        folder = write_toy_model(tmp_path)
        source = {"package": "toy", "version": "0.1", "file": "toy.gguf", "sha256": "cd" * 32}
        manifest = {"revision": "toy-0.1/toy.gguf", "files": {"model.safetensors": "ab" * 32}, "source": source}
        (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
        assert card(folder).weights_sha256 == "ab" * 32
        assert card(folder).revision == f"toy==0.1@sha256:{'cd' * 32}"

    def test_says_what_is_missing(self, tmp_path):
        folder = write_toy_model(tmp_path)
        (folder / "config.json").write_text("{}")
        with pytest.raises(ModelFilesError, match="num_attention_heads"):
            card(folder)


class TestEvaluationLog:
    def test_puts_the_tenants_shard_before_its_day_and_request(self):
        key = evaluation_key(TICKET)
        assert key.startswith("evaluation/")
        assert key.endswith(f"/acme/2027/01/15/{TICKET.request_id}.json")
        assert evaluation_key(ticket(tenant_id="other")).split("/")[1] != key.split("/")[1]

    def test_writes_prompt_answer_and_end(self):
        body = evaluation_document(TICKET, answer=[{"content": "a"}], facts={"outcome": "ok"})
        document = orjson.loads(body)
        assert document["request"] == {"messages": []}
        assert (document["answer"], document["outcome"]) == ([{"content": "a"}], "ok")

    def test_accepts_no_more_than_its_bounds(self, tmp_path):
        uploader = Uploader(s3_url="http://a:b@127.0.0.1:1/bucket")
        log = EvaluationLog(uploader=uploader, spool=tmp_path, spool_bytes_max=100, object_bytes_max=60)
        assert log.accept(size=60)
        assert not log.accept(size=61)
        assert not log.accept(size=41)
        log.forget(size=60)
        assert log.accept(size=41)
        assert log.dropped == 2

    def test_accepts_nothing_without_a_store(self, tmp_path):
        log = EvaluationLog(uploader=None, spool=tmp_path, spool_bytes_max=100, object_bytes_max=60)
        assert not log.accept(size=1)


class TestObjects:
    def test_reads_its_url(self):
        objects = Objects.open("https://key:s%2Fcret@s3.example:9000/bucket")
        assert (objects.endpoint, objects.bucket) == ("https://s3.example:9000", "bucket")
        assert (objects.access_key, objects.secret_key) == ("key", "s/cret")

    @pytest.mark.parametrize("url", ["", "s3://bucket", "http://host", "http://host/a/b", "http:///bucket"])
    def test_refuses_a_url_that_names_no_bucket(self, url):
        with pytest.raises(ValueError, match="S3_URL"):
            Objects.open(url)
