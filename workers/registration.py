"""What a worker says of itself: the model card, its heartbeat. Called by `loop`.

Invariant: the card is read from the model's own files and the running engine, never from a form.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from redis.asyncio import Redis

from contracts.models import ModelCard
from contracts.names import MODELS, worker_key
from contracts.wire import encode
from workers.engines.base import EngineFacts

HEARTBEAT_TTL_MS = 6_000  # three beats: how long a dead worker counts as one that serves
_HASH_BLOCK = 1024 * 1024


class ModelFilesError(ValueError):
    """The model directory cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """`state`: starting, ready, engine_down, draining."""

    worker_id: str
    pool: str
    model: str
    engine: str
    pid: int
    state: str
    running: int
    free_kv_tokens: int
    free_slots: int
    at_ms: int
    attempt_log_failures: int
    evaluation_logs_dropped: int


async def publish_card(redis: Redis, card: ModelCard) -> None:
    """Put the card where gateways read it. Raises RedisError."""
    await redis.hset(MODELS, card.model, encode(card))  # type: ignore[misc,arg-type,unused-ignore]


async def restore_card(redis: Redis, card: ModelCard) -> None:
    """Put the card back where Redis has lost it; another worker's stands. Raises RedisError."""
    await redis.hsetnx(MODELS, card.model, encode(card))  # type: ignore[misc,arg-type,unused-ignore]


async def publish_heartbeat(redis: Redis, beat: Heartbeat) -> None:
    """Raises RedisError."""
    document = {name: getattr(beat, name) for name in Heartbeat.__slots__}
    await redis.set(worker_key(beat.worker_id), orjson.dumps(document), px=HEARTBEAT_TTL_MS)


async def withdraw_heartbeat(redis: Redis, worker_id: str) -> None:
    await redis.delete(worker_key(worker_id))


def read_card(*, folder: Path, model: str, pool: str, engine: str, facts: EngineFacts, created_at_ms: int) -> ModelCard:
    """The card of a model directory under a running engine. Reads large files. Raises ModelFilesError."""
    config = _json(folder / "config.json")
    manifest = _json(folder / "manifest.json") if (folder / "manifest.json").exists() else {}
    hashes: Mapping[str, str] = manifest.get("files", {})
    try:
        heads = int(config["num_attention_heads"])
        own = str(config.get("dtype") or config.get("torch_dtype") or "")
        dtype = own if facts.dtype == "auto" else facts.dtype
        return ModelCard(
            model=model,
            pool=pool,
            repository=str(manifest.get("repository", "")),
            revision=_revision(manifest),
            weights_sha256=_weights_digest(folder, hashes),
            tokenizer_sha256=hashes.get("tokenizer.json") or _digest(folder / "tokenizer.json"),
            dtype=dtype,
            kv_cache_dtype=dtype if facts.cache_dtype == "auto" else facts.cache_dtype,  # vLLM's "auto" is the model's
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
            context_tokens=facts.context_tokens or int(config["max_position_embeddings"]),
            block_tokens=facts.block_tokens,
            engine=engine,
            engine_version=facts.version,
            created_at_ms=created_at_ms,
            tools=facts.tools,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFilesError(f"config.json of {model} lacks {error}") from error


def _revision(manifest: Mapping[str, Any]) -> str:
    """What the model was made from, by its content where the manifest knows it: `package==version@sha256:…`."""
    source: Mapping[str, str] = manifest.get("source", {})
    if {"package", "version", "sha256"} <= source.keys():
        return f"{source['package']}=={source['version']}@sha256:{source['sha256']}"
    return str(manifest.get("revision", ""))


def _weights_digest(folder: Path, hashes: Mapping[str, str]) -> str:
    """One file: its SHA-256. Several: the SHA-256 of their digests in name order. None: empty.

    Weights that the manifest names count where they do not lie: an engine that simulates the model has none.
    """
    here = {path.name for path in folder.glob("*.safetensors")}
    names = sorted(here | {name for name in hashes if name.endswith(".safetensors")})
    digests = [hashes.get(name) or _digest(folder / name) for name in names]
    if len(digests) <= 1:
        return "".join(digests)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BLOCK):
                digest.update(block)
    except OSError as error:
        raise ModelFilesError(f"{path.name} cannot be read") from error
    return digest.hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{path.name} cannot be read") from error
    if not isinstance(document, dict):
        raise ModelFilesError(f"{path.name} is not an object")
    return document
