"""No difference between the books stays unseen, whatever it is and wherever; and no book that agrees is accused."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from billing.closing.compare import (
    BookedRequest,
    HourCount,
    LoggedAttempt,
    differing_hours,
    explain_engine,
    explain_ledger,
    explain_unbilled,
)

HOUR_MS = 3_600_000


@st.composite
def books(draw: st.DrawFn) -> list[BookedRequest]:
    return [
        BookedRequest(
            request_id=f"request-{number}", revision=1, currency="USD", prompt_tokens=draw(st.integers(0, 9)),
            cached_tokens=0, completion_tokens=draw(st.integers(0, 9)), cost_nano=draw(st.integers(0, 99)),
            attempt=draw(st.integers(1, 2)), worker_id="w", outcome="ok", hour_ms=draw(st.integers(0, 3)) * HOUR_MS,
        )
        for number in range(draw(st.integers(1, 8)))
    ]  # fmt: skip


def hours(rows: Sequence[BookedRequest]) -> list[HourCount]:
    """As both stores count them."""
    found = []
    for hour_ms in sorted({row.hour_ms for row in rows}):
        mine = [row for row in rows if row.hour_ms == hour_ms]
        prints = [int(hashlib.md5(f"{row.request_id}/{row.revision}".encode()).hexdigest()[:16], 16) for row in mine]
        found.append(
            HourCount(
                hour_ms=hour_ms, currency="USD", requests=len(mine),
                prompt_tokens=sum(row.prompt_tokens for row in mine), cached_tokens=0,
                completion_tokens=sum(row.completion_tokens for row in mine),
                cost_nano=sum(row.cost_nano for row in mine), fingerprint=reduce(int.__xor__, prints),
            )
        )  # fmt: skip
    return found


def logged(rows: Sequence[BookedRequest]) -> dict[tuple[str, int], LoggedAttempt]:
    return {
        (row.request_id, row.attempt): LoggedAttempt(
            request_id=row.request_id, attempt=row.attempt, prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens, completion_tokens=row.completion_tokens, outcome=row.outcome,
        )
        for row in rows
    }  # fmt: skip


changes = st.sampled_from(("lost", "doubled id", "prompt_tokens", "completion_tokens", "cost_nano"))


class TestLedger:
    @given(books())
    def test_agrees_with_itself(self, rows: list[BookedRequest]) -> None:
        assert differing_hours(hours(rows), hours(rows)) == []
        assert explain_ledger(rows, reversed(rows), hour_ms=0) == []

    @given(books(), changes, st.data())
    def test_shows_the_hour_and_the_request_of_any_difference(
        self, rows: list[BookedRequest], change: str, data: st.DataObject
    ) -> None:
        place = data.draw(st.integers(0, len(rows) - 1))
        odd = rows[place]
        other = rows[:place] + rows[place + 1 :]
        if change == "doubled id":
            other.insert(place, replace(odd, request_id="another"))
        elif change != "lost":
            other.insert(place, replace(odd, **{change: getattr(odd, change) + data.draw(st.integers(1, 5))}))
        assert differing_hours(hours(rows), hours(other)) == [odd.hour_ms]
        gaps = explain_ledger(rows, other, hour_ms=odd.hour_ms)
        assert odd.request_id in {gap.request_id for gap in gaps}
        assert {gap.request_id for gap in gaps} <= {odd.request_id, "another"}


class TestEngine:
    @given(books())
    def test_bears_out_what_it_counted(self, rows: list[BookedRequest]) -> None:
        assert explain_engine(rows, logged(rows)) == []
        assert explain_unbilled(logged(rows).values(), billed=[row.request_id for row in rows]) == []

    @given(books(), st.sampled_from(("lost", "prompt_tokens", "completion_tokens", "unbilled")), st.data())
    def test_shows_the_request_of_any_difference(
        self, rows: list[BookedRequest], change: str, data: st.DataObject
    ) -> None:
        odd = data.draw(st.sampled_from(rows))
        attempts = logged(rows)
        key = (odd.request_id, odd.attempt)
        if change == "unbilled":
            rows = [row for row in rows if row is not odd]
        elif change == "lost":
            del attempts[key]
        else:
            attempts[key] = replace(attempts[key], **{change: getattr(odd, change) + data.draw(st.integers(1, 5))})
        gaps = explain_engine(rows, attempts)
        gaps += explain_unbilled(attempts.values(), billed=[row.request_id for row in rows])
        assert [gap.request_id for gap in gaps] == [odd.request_id]
