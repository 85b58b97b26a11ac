"""Each invariant of chaos holds on facts that agree, and is broken by one fact that does not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from infra.chaos import invariants
from infra.chaos.facts import (
    AttemptLine,
    Books,
    Call,
    Connection,
    EventSeen,
    Left,
    Posting,
    Row,
    State,
    Tokens,
)

ID = "0193"
TOKENS = Tokens(10, 0, 4)
COST = Decimal("0.0000026")
ROW = Row(request_id=ID, revision=1, tenant_id="t", tokens=TOKENS, delivered=4, cost=COST, outcome="ok", attempt=1)
POSTING = Posting(request_id=ID, revision=1, amount=COST)
LINE = AttemptLine(request_id=ID, attempt=1, tokens=TOKENS, delivered=4, outcome="ok")
STATE = State(request_id=ID, status="ended", outcome="ok", tokens=TOKENS, cost=COST)
BOOKS = Books(rows=(ROW,), postings=(POSTING,), attempts=(LINE,), states=(STATE,), left=Left(), ledger_owed=COST)


def spell(said: str, tokens: int) -> str:
    """An engine whose tokens are single characters."""
    return (said * tokens)[:tokens]


def connection(**changes: object) -> Connection:
    events = [EventSeen("1-n", number, text) for number, text in enumerate("abca", start=1)]
    seen = Connection(ID, 200, 0, events, "abca", "done", "", TOKENS, COST)
    return replace(seen, **changes)  # type: ignore[arg-type]


def call(*connections: Connection, kind: str = "stream") -> Call:
    return Call("c", kind, "Acme", "abc", list(connections))


def rules(found: list[invariants.Violation]) -> set[str]:
    return {violation.rule for violation in found}


class TestJudge:
    def test_finds_nothing_where_all_agree(self) -> None:
        assert invariants.judge([call(connection())], BOOKS, spell=spell) == []

    def test_asks_every_invariant(self) -> None:
        bad = call(connection(status=500, end="late", text="x", events=[EventSeen("1-n", 2, "x")]), kind="retry-plain")
        bad.unanswered = True
        books = replace(BOOKS, postings=(), ledger_balance=Decimal(1), left=Left(holds=("h",)))
        found = rules(invariants.judge([bad], books, spell=spell))
        assert found >= {"books agree", "ledger balances", "text", "gap", "late", "unanswered", "internal error"}
        assert found >= {"served", "hold left"}


class TestAcceptedEndedOnce:
    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"states": ()}, "ended"),
            ({"states": (replace(STATE, status="running"),)}, "ended"),
            ({"states": (replace(STATE, tokens=None),)}, "ended"),
            ({"states": (replace(STATE, outcome="lost"),)}, "ended"),
            ({"rows": ()}, "ended once"),
            ({"rows": (ROW, ROW)}, "ended once"),
            ({"postings": ()}, "ended once"),
            ({"postings": (POSTING, POSTING)}, "ended once"),
        ],
    )
    def test_sees_a_request_without_its_one_end(self, changes: dict[str, object], rule: str) -> None:
        books = replace(BOOKS, **changes)  # type: ignore[arg-type]
        assert rules(invariants.accepted_ended_once([call(connection())], books)) == {rule}

    def test_asks_nothing_of_what_was_refused(self) -> None:
        refused = connection(status=503, end="error")
        empty = Books(rows=(), postings=(), attempts=(), states=(), left=Left())
        assert invariants.accepted_ended_once([call(refused)], empty) == []


class TestBooksAgree:
    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"rows": (replace(ROW, copies=2),)}, "stored once"),
            ({"rows": (), "ledger_owed": COST}, "books agree"),
            ({"postings": (), "ledger_owed": Decimal(0)}, "books agree"),
            ({"rows": (replace(ROW, cost=COST + 1),)}, "books agree"),
            ({"ledger_balance": Decimal("0.000000001")}, "ledger balances"),
            ({"ledger_owed": COST * 2}, "ledger owes"),
        ],
    )
    def test_sees_one_book_that_differs(self, changes: dict[str, object], rule: str) -> None:
        assert rules(invariants.books_agree(replace(BOOKS, **changes))) == {rule}  # type: ignore[arg-type]


class TestAttemptsExplainTheBill:
    def test_takes_the_line_of_the_attempt_that_ended_it_among_several(self) -> None:
        second = replace(ROW, attempt=2)
        lines = (replace(LINE, tokens=Tokens(10, 0, 9), outcome="failed"), replace(LINE, attempt=2))
        assert invariants.attempts_explain_the_bill(replace(BOOKS, rows=(second,), attempts=lines)) == []

    def test_takes_what_the_log_held_where_the_worker_died_first(self) -> None:
        row = replace(ROW, outcome="failed", tokens=Tokens(10, 0, 3), delivered=3)
        assert invariants.attempts_explain_the_bill(replace(BOOKS, rows=(row,), attempts=())) == []

    @pytest.mark.parametrize(
        ("row", "lines"),
        [
            (ROW, ()),  # a whole answer that nobody wrote down
            (ROW, (replace(LINE, attempt=2),)),  # written down by another attempt only
            (ROW, (replace(LINE, tokens=Tokens(10, 0, 5)),)),  # another count
            (replace(ROW, outcome="failed", delivered=3), ()),  # more than was released
            (replace(ROW, outcome="failed"), (replace(LINE, tokens=Tokens(10, 0, 3)),)),  # more than was counted
        ],
    )
    def test_sees_a_bill_that_no_attempt_explains(self, row: Row, lines: tuple[AttemptLine, ...]) -> None:
        found = invariants.attempts_explain_the_bill(replace(BOOKS, rows=(row,), attempts=lines))
        assert rules(found) == {"bill explained"}

    def test_sees_an_attempt_that_was_never_billed(self) -> None:
        found = invariants.attempts_explain_the_bill(replace(BOOKS, rows=()))
        assert rules(found) == {"attempt billed"}


class TestToldIsBilled:
    @pytest.mark.parametrize("row", [replace(ROW, tokens=Tokens(10, 0, 5)), replace(ROW, cost=COST * 2)])
    def test_sees_a_client_who_was_told_something_else(self, row: Row) -> None:
        found = invariants.told_is_billed([call(connection())], replace(BOOKS, rows=(row,)))
        assert rules(found) == {"told is billed", "state is billed"}

    def test_sees_a_told_usage_without_a_row(self) -> None:
        found = invariants.told_is_billed([call(connection())], replace(BOOKS, rows=(), states=()))
        assert rules(found) == {"told is billed"}

    def test_sees_a_state_with_another_outcome(self) -> None:
        books = replace(BOOKS, states=(replace(STATE, outcome="failed"),))
        assert rules(invariants.told_is_billed([call(connection())], books)) == {"state is billed"}


class TestDeliveredIsBilled:
    def test_sees_an_end_with_less_than_was_billed(self) -> None:
        found = invariants.delivered_is_billed([call(connection(text="abc"))], BOOKS, spell=spell)
        assert rules(found) == {"delivered is billed"}

    @pytest.mark.parametrize("end", ["done", "cut"])
    def test_sees_text_that_was_never_said(self, end: str) -> None:
        found = invariants.delivered_is_billed([call(connection(text="abab", end=end))], BOOKS, spell=spell)
        assert rules(found) == {"text"}

    def test_takes_the_beginning_where_the_end_was_not_seen(self) -> None:
        assert invariants.delivered_is_billed([call(connection(text="ab", end="cut"))], BOOKS, spell=spell) == []

    def test_takes_a_part_of_the_next_token_and_no_more(self) -> None:
        row = replace(ROW, outcome="failed", tokens=Tokens(10, 0, 1), delivered=1)

        def pairs(said: str, tokens: int) -> str:
            return (said * tokens)[: 2 * tokens]

        books = replace(BOOKS, rows=(row,))
        part, more = (call(connection(text=text, end="error")) for text in ("abc", "abcab"))
        assert invariants.delivered_is_billed([part], books, spell=pairs) == []
        assert rules(invariants.delivered_is_billed([more], books, spell=pairs)) == {"text"}


class TestStreamsAreWhole:
    @pytest.mark.parametrize(
        ("ids", "rule"),
        [
            ([("1-n", 1), ("1-n", 3)], "gap"),
            ([("1-n", 2)], "gap"),
            ([("1-n", 1), ("1-n", 1)], "repeat"),
            ([("1-n", 1), ("2-m", 1)], "repeat"),
            ([("1-n", 1), ("2-m", 3)], "gap"),
            ([("2-m", 1), ("1-n", 2)], "splice"),
        ],
    )
    def test_sees_ids_that_do_not_rise_by_one_or_an_attempt_before_the_last(
        self, ids: list[tuple[str, int]], rule: str
    ) -> None:
        events = [EventSeen(epoch, seq, "a") for epoch, seq in ids]
        assert rule in rules(invariants.streams_are_whole([call(connection(events=events))]))

    def test_follows_a_resumed_stream_from_where_it_broke(self) -> None:
        first = connection(events=[EventSeen("1-n", 1, "a")], end="cut")
        rest = connection(after_seq=1, events=[EventSeen("1-n", 2, "b"), EventSeen("1-n", 3, "c")])
        assert invariants.streams_are_whole([call(first, rest)]) == []
        late = replace(rest, events=rest.events[1:])
        assert rules(invariants.streams_are_whole([call(first, late)])) == {"gap"}

    def test_sees_an_event_that_changed_between_two_readers(self) -> None:
        other = connection(events=[EventSeen("1-n", 1, "z")])
        assert rules(invariants.streams_are_whole([call(connection()), call(other)])) == {"changed"}

    def test_sees_a_retry_that_was_told_otherwise_by_another_attempt(self) -> None:
        other = connection(events=[EventSeen("2-m", 1, "z")])
        assert rules(invariants.streams_are_whole([call(connection(), other)])) == {"changed"}

    def test_takes_a_stream_that_a_later_attempt_goes_on_with(self) -> None:
        events = [EventSeen("1-n", 1, "a"), EventSeen("3-o", 2, "b")]
        other = [EventSeen("3-o", 1, "a"), EventSeen("3-o", 2, "b")]
        calls = [call(connection(events=events)), call(connection(events=other))]
        assert invariants.streams_are_whole(calls) == []


class TestNobodyWaitsForEver:
    def test_sees_who_waits_and_who_is_never_answered(self) -> None:
        late = call(connection(end="late"))
        given_up = call(connection(status=503, end="error", code="service_unavailable"), kind="retry-plain")
        given_up.unanswered = True
        assert rules(invariants.nobody_waits_for_ever([late, given_up])) == {"late", "unanswered"}
        assert invariants.nobody_waits_for_ever([call(connection())]) == []


class TestRefusalsAreMeant:
    @pytest.mark.parametrize("changes", [{"status": 500}, {"code": "internal_error"}, {"code": "not_json"}])
    def test_sees_an_internal_error(self, changes: dict[str, object]) -> None:
        found = invariants.refusals_are_meant([call(connection(**changes))])
        assert rules(found) == {"internal error"}

    def test_takes_a_refusal_in_our_words(self) -> None:
        refused = connection(status=503, code="service_unavailable", end="error")
        assert invariants.refusals_are_meant([call(refused)]) == []


class TestSomethingWasServed:
    def test_sees_a_round_that_proves_nothing(self) -> None:
        assert rules(invariants.something_was_served([call(connection(end="cut"))])) == {"served"}
        assert rules(invariants.something_was_served([])) == {"served"}


class TestOneKeyOneRequest:
    def test_sees_two_requests_under_one_key(self) -> None:
        tries = call(connection(end="cut"), connection(request_id="0194"), kind="retry-stream")
        assert rules(invariants.one_key_one_request([tries], BOOKS)) == {"one key"}

    def test_takes_a_first_try_that_was_refused_and_never_ran(self) -> None:
        tries = call(connection(request_id="0194", status=503, end="error"), connection(), kind="retry-stream")
        assert invariants.one_key_one_request([tries], BOOKS) == []


class TestNothingIsLeft:
    @pytest.mark.parametrize(
        "left",
        [
            Left(holds=("h",)),
            Left(held=("p:1:c:h=1",)),
            Left(waiting=1),
            Left(running=1),
            Left(unsettled=1),
            Left(usage_pending=1),
            Left(poisoned=1),
        ],
    )
    def test_sees_whatever_is_left(self, left: Left) -> None:
        assert len(invariants.nothing_is_left(replace(BOOKS, left=left))) == 1
