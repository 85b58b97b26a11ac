"""Step 9, BILL: what the books of one tenant say about the same hours, and where they differ. Pure.

Called by `billing.closing.check`. Invariants: two books agree when number, tokens, cost and the set of ids agree, hour
by hour; what differs is named request by request; an end that the queue itself made is explained, never waved through.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from contracts.money import text_from_nano
from contracts.outcomes import Outcome

NOT_WAIVABLE = frozenset({"not_over", "lag"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCount:
    """One hour of one book. `fingerprint`: XOR over the first 64 bits of MD5 of "id/revision"."""

    hour_ms: int
    currency: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedRequest:
    """One (request, revision) in a book. Attempt, worker and outcome are ClickHouse's alone."""

    request_id: str
    revision: int
    currency: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int
    attempt: int = 0
    worker_id: str = ""
    outcome: str = ""
    tokens_known: bool = True
    hour_ms: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.request_id, self.revision

    def agrees_with(self, other: "BookedRequest") -> bool:
        """In currency and cost, and in tokens as far as both know them."""
        if (self.currency, self.cost_nano) != (other.currency, other.cost_nano):
            return False
        if not (self.tokens_known and other.tokens_known):
            return True
        return self.counts == other.counts

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.prompt_tokens, self.cached_tokens, self.completion_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAttempt:
    """The engine's side: the last line of a worker's attempt log for (request, attempt)."""

    request_id: str
    attempt: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    outcome: str

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.prompt_tokens, self.cached_tokens, self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLog:
    """An evaluation log that a row names: its worker had accepted it before the end was written."""

    request_id: str
    key: str
    hour_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCount:
    """What one pool's queue has counted itself at each end since `from_ms`: requests and tokens by hour."""

    pool: str
    from_ms: int
    hours: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that nobody has explained yet."""

    kind: str
    detail: str
    at_ms: int | None = None
    request_id: str = ""
    tokens: int = 0

    @property
    def can_be_waived(self) -> bool:
        return self.kind not in NOT_WAIVABLE


def differing_hours(one: Iterable[HourCount], other: Iterable[HourCount]) -> list[int]:
    """Hours that the two books do not tell alike, in order."""
    mine = {(count.hour_ms, count.currency): count for count in one}
    yours = {(count.hour_ms, count.currency): count for count in other}
    return sorted({hour for hour, currency in mine.keys() | yours.keys()
                   if mine.get((hour, currency)) != yours.get((hour, currency))})  # fmt: skip


def explain_ledger(usage: Iterable[BookedRequest], ledger: Iterable[BookedRequest], *, hour_ms: int) -> list[Gap]:
    """Why an hour differs between ClickHouse and the ledger, request by request."""
    metered, posted = ({row.key: row for row in rows} for rows in (usage, ledger))
    gaps = []
    for key in sorted(metered.keys() | posted.keys()):
        here, there = metered.get(key), posted.get(key)
        if here is not None and there is not None and here.agrees_with(there):
            continue
        known = here or there
        assert known is not None
        detail = (
            "in the ledger, not in ClickHouse" if here is None
            else "in ClickHouse, not in the ledger" if there is None
            else f"ClickHouse says {_said(here)}, the ledger {_said(there)}"
        )  # fmt: skip
        tokens = abs(here.tokens - there.tokens) if here and there else known.tokens
        gaps.append(Gap(kind="ledger", detail=detail, at_ms=hour_ms, request_id=known.request_id, tokens=tokens))
    return gaps


def explain_engine(usage: Iterable[BookedRequest], attempts: Mapping[tuple[str, int], LoggedAttempt]) -> list[Gap]:
    """Rows that the engine's side does not bear out. Ends that no worker made have nothing to be borne out by:
    requests that were never claimed, and those that a cancel or the reaper ended for what had been released.
    """
    gaps = []
    for row in usage:
        if row.revision != 1 or not row.worker_id:
            continue
        logged = attempts.get((row.request_id, row.attempt))
        if logged is not None and row.counts == logged.counts:
            continue
        if row.outcome != Outcome.OK and (logged is None or row.completion_tokens <= logged.completion_tokens):
            continue
        detail = (
            f"billed, but attempt {row.attempt} is in no attempt log" if logged is None
            else f"billed {row.counts} (prompt, cached, completion), the engine counted {logged.counts}"
        )  # fmt: skip
        missing = row.tokens if logged is None else abs(
            row.tokens - logged.prompt_tokens - logged.completion_tokens
        )  # fmt: skip
        gaps.append(Gap(kind="engine", detail=detail, at_ms=row.hour_ms, request_id=row.request_id, tokens=missing))
    return gaps


def explain_unbilled(attempts: Iterable[LoggedAttempt], *, billed: Iterable[str]) -> list[Gap]:
    """Attempts that ended in the period and whose request is in no book."""
    known = set(billed)
    last: dict[str, LoggedAttempt] = {}
    for logged in attempts:
        if logged.request_id not in known:
            last[logged.request_id] = logged
    return [
        Gap(
            kind="unbilled",
            detail=f"attempt {each.attempt} ended ({each.outcome}) and no book has the request",
            request_id=each.request_id,
            tokens=each.prompt_tokens + each.completion_tokens,
        )
        for each in last.values()
    ]


def explain_queue(count: PoolCount, metered: Mapping[int, tuple[int, int]]) -> list[Gap]:
    """Hours in which a queue ended other requests than there are rows."""
    gaps = []
    for hour_ms in sorted(count.hours.keys() | metered.keys()):
        ended, rows = count.hours.get(hour_ms, (0, 0)), metered.get(hour_ms, (0, 0))
        if ended != rows:
            detail = (
                f"the queue of {count.pool} ended {ended[0]} requests of {ended[1]} tokens, "
                f"ClickHouse has {rows[0]} of {rows[1]}"
            )
            gaps.append(Gap(kind="queue", detail=detail, at_ms=hour_ms, tokens=abs(ended[1] - rows[1])))
    return gaps


def explain_logs(named: Iterable[NamedLog], kept: Container[str]) -> list[Gap]:
    """Evaluation logs that rows name and the store does not have. A row that names none was dropped by policy, or its
    tenant had not opted in: its worker said so before the end, which explains it.
    """
    return [
        Gap(
            kind="evaluation_log",
            detail=f"the object store does not have {log.key}",
            at_ms=log.hour_ms,
            request_id=log.request_id,
        )
        for log in named
        if log.key not in kept
    ]


def _said(row: BookedRequest) -> str:
    tokens = f"{row.prompt_tokens}+{row.completion_tokens} tokens ({row.cached_tokens} cached)"
    return f"{tokens}, {text_from_nano(row.cost_nano)} {row.currency}"
