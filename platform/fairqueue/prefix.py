"""Step 5, QUEUE: what a prompt begins with, as a key. Pure; called by `queue` and `model`.

The key names the first bytes of the prompt under its tenant's cache salt, so that two tenants never meet. It is a hint:
whether the worker that served the same key last still has the blocks, its engine alone knows. Invariant: equal
beginnings of one tenant give equal keys, whatever sampling fields stand before them in the body.
"""

import hashlib

from contracts.jobs import Endpoint, Ticket

PROMPT_TOKENS_MIN = 512  # a shorter prompt is computed sooner than it is worth to wait for
PREFIX_BYTES = 2_048
_DIGEST_BYTES = 12
_FIELDS = {Endpoint.CHAT: b'"messages":', Endpoint.COMPLETIONS: b'"prompt":'}


def prefix_key(ticket: Ticket) -> str:
    """Key of the prompt's first PREFIX_BYTES; empty where the prompt is short or not to be found."""
    if ticket.prompt_tokens < PROMPT_TOKENS_MIN:
        return ""
    start = ticket.body.find(_FIELDS[ticket.endpoint])
    if start < 0:
        return ""
    beginning = ticket.body[start : start + PREFIX_BYTES]
    key = hashlib.blake2b(beginning, digest_size=_DIGEST_BYTES, key=hashlib.sha256(ticket.cache_salt.encode()).digest())
    return key.hexdigest()
