"""Where the time of a request went. Pure: every instant is handed in (seconds, monotonic).

Called by `attempt`. Inter-token latency is kept as a logarithmic histogram so that percentiles merge over requests:

    bucket(v) = v                                   for v < 8 microseconds
    bucket(v) = 8*(e-2) + ((v >> (e-3)) & 7)        where e = floor(log2 v)

Eight buckets per octave: the lower edge of a bucket is at most 12.5 % below any value in it (HdrHistogram's scheme with
three bits of precision). `lower_edge` is the inverse. The time between two releases is spread evenly over the tokens
that the second one released.
"""

from dataclasses import dataclass, field

from contracts.jobs import Timings

_BITS = 3
_SUB = 1 << _BITS


def bucket(value_us: int) -> int:
    """Histogram index of a duration in microseconds. Raises ValueError for a negative one."""
    if value_us < 0:
        raise ValueError("a duration is never negative")
    if value_us < _SUB:
        return value_us
    exponent = value_us.bit_length() - 1
    return _SUB * (exponent - _BITS + 1) + ((value_us >> (exponent - _BITS)) & (_SUB - 1))


def lower_edge(index: int) -> int:
    """Smallest duration, in microseconds, that falls into bucket `index`."""
    if index < _SUB:
        return index
    exponent = index // _SUB + _BITS - 1
    return (_SUB + index % _SUB) << (exponent - _BITS)


@dataclass(slots=True, kw_only=True)
class LatencyTrack:
    """Instants of one attempt. `edge_us`, `guard_us` and `queue_us` happened before it."""

    claimed_at: float
    edge_us: int
    guard_us: int
    queue_us: int
    sent_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    first_release_at: float | None = None
    guard_seconds: float = 0.0
    _last_release_at: float | None = None
    _released_tokens: int = 0
    _itl: dict[int, int] = field(default_factory=dict)
    _itl_sum_us: int = 0

    def token(self, *, at: float) -> None:
        """The engine gave at least one token."""
        if self.first_token_at is None:
            self.first_token_at = at
        self.last_token_at = at

    def release(self, *, at: float, tokens: int) -> None:
        """Text of the first `tokens` output tokens has been released (cumulative)."""
        fresh = tokens - self._released_tokens
        if fresh <= 0:
            return
        if self._last_release_at is not None:
            each = _us(at - self._last_release_at) // fresh
            index = bucket(each)
            self._itl[index] = self._itl.get(index, 0) + fresh
            self._itl_sum_us += each * fresh
        self._last_release_at = at
        self._released_tokens = tokens

    def resume(self, *, tokens: int) -> None:
        """Text of so many tokens was released by an attempt before this one: their times are not known here."""
        self._released_tokens = tokens

    def timings(self, *, at: float) -> Timings:
        """All durations, for a request that ends now. Time to first token is 0 when nothing was released."""
        prefill = decode = ttft = 0
        if self.first_token_at is not None and self.last_token_at is not None:
            prefill = _us(self.first_token_at - (self.sent_at or self.claimed_at))
            decode = _us(self.last_token_at - self.first_token_at)
        before = self.edge_us + self.queue_us
        if self.first_release_at is not None:
            ttft = before + _us(self.first_release_at - self.claimed_at)
        return Timings(
            edge_us=self.edge_us,
            guard_us=self.guard_us,
            queue_us=self.queue_us,
            prefill_us=prefill,
            decode_us=decode,
            output_guard_us=_us(self.guard_seconds),
            ttft_us=ttft,
            total_us=before + _us(at - self.claimed_at),
            itl=dict(self._itl),
            itl_sum_us=self._itl_sum_us,
        )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000))
