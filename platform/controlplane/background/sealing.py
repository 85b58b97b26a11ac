"""How the prompt and the answer of a background request lie in PostgreSQL: compressed, then sealed (AES-256-GCM).

Called by `keeping` beside this file. Invariants: the key is of this purpose alone, and what is sealed is bound to its
request and to what it is, so that a dump, or a column moved to another row, is worth nothing; what former root secrets
sealed still opens.
"""

from collections.abc import Sequence
from uuid import UUID

import zstandard

from stores import sealing

BYTES_MAX = 64 * 1024 * 1024  # of what is opened: a log has at most a quarter of it


def seal(data: bytes, *, key: bytes, request_id: UUID, part: str) -> bytes:
    """`key` has 32 bytes; `part` says what it is."""
    return sealing.seal(zstandard.compress(data), key=key, about=_about(request_id, part))


def unseal(sealed: bytes, *, keys: Sequence[bytes], request_id: UUID, part: str) -> bytes:
    """What was sealed, under whichever of these keys. Raises stores.sealing.Unreadable."""
    packed = sealing.unseal(sealed, keys=keys, about=_about(request_id, part), what=f"request {request_id}")
    return zstandard.decompress(packed, max_output_size=BYTES_MAX)


def _about(request_id: UUID, part: str) -> bytes:
    return request_id.bytes + part.encode("ascii")
