"""A served model as the platform knows it: read from its own files and the running engine, never from a form."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The exact configuration on record (S1). Sizes in elements, context in tokens."""

    model: str
    pool: str
    repository: str
    revision: str
    weights_sha256: str
    tokenizer_sha256: str
    dtype: str
    kv_cache_dtype: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context_tokens: int
    block_tokens: int
    engine: str
    engine_version: str
    created_at_ms: int
    tools: bool = True  # whether the engine calls tools
