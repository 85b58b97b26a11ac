"""Block-accurate paged prefix cache, as vLLM's KV cache manager keeps it. Pure; called by `scheduler`.

Invariants: a block is either free or referenced; only full blocks carry a hash; a hash chain begins with the salt, so
two salts never share a block; the last token of a prompt is always computed, never cached. Free blocks keep their
content until they are taken again, least recently freed first, the tail of a sequence before its head
(vLLM: `v1/core/kv_cache_manager.py`, `v1/core/block_pool.py`).
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Holding:
    """The blocks of one sequence; `tail` are the tokens of its last, unfilled block."""

    blocks: list[int]
    parent: bytes
    tail: list[int] = field(default_factory=list)


class BlockCache:
    """Blocks of `block_tokens` tokens; sequences are named by the caller."""

    def __init__(self, *, blocks: int, block_tokens: int) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError("a cache has at least one block of at least one token")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._references = [0] * blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._holdings: dict[str, _Holding] = {}

    @property
    def used_blocks(self) -> int:
        return self.blocks - len(self._free)

    def open(self, *, sequence: str, tokens: Sequence[int], salt: str) -> int | None:
        """Take blocks for a prompt. Returns the tokens found in the cache, or None when there is no room now."""
        hits = self._hits(tokens, salt)
        needed = -(-len(tokens) // self.block_tokens) - len(hits)
        revived = sum(1 for _, block in hits if self._references[block] == 0)
        if needed > len(self._free) - revived:
            return None
        for _, block in hits:
            self._take(block)
        parent = hits[-1][0] if hits else salt.encode()
        holding = _Holding(blocks=[block for _, block in hits], parent=parent)
        self._holdings[sequence] = holding
        cached = len(hits) * self.block_tokens
        for token in tokens[cached:]:
            self._append(holding, token)
        return cached

    def grow(self, *, sequence: str, token: int) -> bool:
        """Store one generated token. False when it needs a block and none is free."""
        holding = self._holdings[sequence]
        if not holding.tail and not self._free:
            return False
        self._append(holding, token)
        return True

    def close(self, *, sequence: str) -> None:
        """Give the blocks back; their content stays until it is overwritten. Unknown sequences are ignored."""
        holding = self._holdings.pop(sequence, None)
        if holding is None:
            return
        for block in reversed(holding.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def _hits(self, tokens: Sequence[int], salt: str) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        parent = salt.encode()
        size = self.block_tokens
        for start in range(0, (len(tokens) - 1) // size * size, size):
            parent = _chain(parent, tokens[start : start + size])
            block = self._block_of.get(parent)
            if block is None:
                break
            found.append((parent, block))
        return found

    def _take(self, block: int) -> None:
        if self._references[block] == 0:
            del self._free[block]
        self._references[block] += 1

    def _append(self, holding: _Holding, token: int) -> None:
        if not holding.tail:
            holding.blocks.append(self._evict())
        holding.tail.append(token)
        if len(holding.tail) == self.block_tokens:
            holding.parent = _chain(holding.parent, holding.tail)
            holding.tail.clear()
            if holding.parent not in self._block_of:
                block = holding.blocks[-1]
                self._block_of[holding.parent] = block
                self._hash_of[block] = holding.parent

    def _evict(self) -> int:
        block, _ = self._free.popitem(last=False)
        old = self._hash_of.pop(block, None)
        if old is not None:
            del self._block_of[old]
        self._references[block] = 1
        return block


def _chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", tokens).tobytes(), key=hashlib.sha256(parent).digest(), digest_size=16).digest()
