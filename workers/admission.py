"""How much more this worker may claim: sequences and KV tokens. Pure; called by `loop`."""

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.jobs import Ticket
from fairqueue import policy

KV_TOKENS_UNKNOWN = 2**40  # an engine that does not say how much it holds takes what its sequences allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    free_slots: int
    free_kv_tokens: int


def compute_room(*, tickets: Iterable[Ticket], sequences_max: int, kv_tokens: int) -> Room:
    """Room beside what runs, each at its worst case. `kv_tokens` 0: unknown.

    An empty worker takes any request: one that its cache can never hold whole is the engine's to refuse.
    """
    running = list(tickets)
    slots = sequences_max - sum(ticket.choices for ticket in running)
    if not running or not kv_tokens:
        return Room(free_slots=max(slots, 0), free_kv_tokens=KV_TOKENS_UNKNOWN)
    held = sum(
        policy.kv_need(prompt_tokens=ticket.prompt_tokens, max_tokens=ticket.max_tokens, choices=ticket.choices)
        for ticket in running
    )
    return Room(free_slots=max(slots, 0), free_kv_tokens=max(kv_tokens - held, 0))
