"""What must hold after any fault, each as a pure function of the facts: an empty list, or what is broken.

Called by `round`. The policy is that of the request protocol: a request ends once and is billed once; what is billed is
what the attempt that ended it wrote down, or, where its worker died first, what the log of released frames holds; an
attempt log never bills by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from infra.chaos.facts import AttemptLine, Books, Call, Connection, Row, Violation

OUTCOMES = frozenset({"ok", "cancelled", "failed", "guardrail", "expired"})
WHOLE = frozenset({"ok", "guardrail"})
Spell = Callable[[str, int], str]  # (what the engine was told to say, tokens) -> the text of so many tokens


def accepted_ended_once(calls: Sequence[Call], books: Books) -> list[Violation]:
    """Every accepted request is ended, with one outcome, in one row and one posting."""
    states = {state.request_id: state for state in books.states}
    rows = Counter(row.request_id for row in books.rows if row.revision == 1)
    posted = Counter(posting.request_id for posting in books.postings if posting.revision == 1)
    found: list[Violation] = []
    for request_id in sorted({item.request_id for item in _connections(calls) if item.is_accepted}):
        state = states.get(request_id)
        if state is None or state.status != "ended" or state.tokens is None:
            found.append(Violation("ended", request_id, f"its state is {state}"))
        elif state.outcome not in OUTCOMES:
            found.append(Violation("ended", request_id, f"its outcome is {state.outcome!r}"))
        if rows[request_id] != 1 or posted[request_id] != 1:
            counts = f"{rows[request_id]} rows in ClickHouse, {posted[request_id]} postings in the ledger"
            found.append(Violation("ended once", request_id, counts))
    return found


def books_agree(books: Books) -> list[Violation]:
    """ClickHouse and ledger hold the same requests with the same money, each stored once; the entries balance."""
    found = [
        Violation("stored once", row.request_id, f"{row.copies} rows under one key without FINAL")
        for row in books.rows
        if row.copies != 1
    ]
    rows = {(row.request_id, row.revision): row.cost for row in books.rows}
    posted = {(posting.request_id, posting.revision): posting.amount for posting in books.postings}
    for key in sorted(rows.keys() | posted.keys()):
        if rows.get(key) != posted.get(key):
            detail = f"revision {key[1]}: ClickHouse {rows.get(key)}, ledger {posted.get(key)}"
            found.append(Violation("books agree", key[0], detail))
    if books.ledger_balance != 0:
        found.append(Violation("ledger balances", "", f"the sum of all entries is {books.ledger_balance}"))
    total = sum(posted.values(), Decimal(0))
    if books.ledger_owed != total:
        found.append(Violation("ledger owes", "", f"accounts grew by {books.ledger_owed}, postings say {total}"))
    return found


def attempts_explain_the_bill(books: Books) -> list[Violation]:
    """Each row is the line of the attempt that ended it, or what the log held where that worker died first."""
    lines: dict[str, list[AttemptLine]] = defaultdict(list)
    for line in books.attempts:
        lines[line.request_id].append(line)
    rows = {row.request_id: row for row in books.rows if row.revision == 1}
    found = [
        Violation("attempt billed", request_id, f"{len(lines[request_id])} lines in attempt logs, no row")
        for request_id in sorted(lines.keys() - rows.keys())
    ]
    for row in rows.values():
        found += _explained(row, [line for line in lines[row.request_id] if line.attempt == row.attempt])
    return found


def _explained(row: Row, lines: Sequence[AttemptLine]) -> list[Violation]:
    if any(line.outcome == row.outcome and line.tokens == row.tokens for line in lines):
        return []
    if row.outcome in WHOLE:
        return [
            Violation("bill explained", row.request_id, f"a whole answer without its attempt's line: {row}, {lines}")
        ]
    # The queue ended it by itself: from the log of released frames, never more than the worker had counted.
    if row.tokens.completion > row.delivered:
        detail = f"billed {row.tokens.completion} output tokens, the log held {row.delivered}"
        return [Violation("bill explained", row.request_id, detail)]
    if lines and row.tokens.completion > max(line.tokens.completion for line in lines):
        return [Violation("bill explained", row.request_id, f"more than its attempts wrote down: {row}, {lines}")]
    return []


def told_is_billed(calls: Sequence[Call], books: Books) -> list[Violation]:
    """The usage and the cost that a client was told are those of the row and of GET /v1/requests/{id}."""
    rows = {row.request_id: row for row in books.rows if row.revision == 1}
    found: list[Violation] = []
    for item in _connections(calls):
        if item.usage is None:
            continue
        row = rows.get(item.request_id)
        if row is None or item.usage != row.tokens or item.cost != row.cost:
            detail = f"the client was told {item.usage} for {item.cost}, the row says {row}"
            found.append(Violation("told is billed", item.request_id, detail))
    for state in books.states:
        row = rows.get(state.request_id)
        if row and state.tokens and (state.tokens, state.cost, state.outcome) != (row.tokens, row.cost, row.outcome):
            found.append(Violation("state is billed", state.request_id, f"{state}, the row says {row}"))
    return found


def delivered_is_billed(calls: Sequence[Call], books: Books, *, spell: Spell | None) -> list[Violation]:
    """Where a client saw the end, its text is exactly the tokens that were billed.

    Where it did not, it is the beginning of that text: what was released was really said, by one attempt.
    `spell` None: the engine's text is not known (a real model), so only equal requests can be compared.
    """
    rows = {row.request_id: row for row in books.rows if row.revision == 1}
    found: list[Violation] = []
    for call in calls:
        for item in call.connections:
            row = rows.get(item.request_id)
            if row is None or not call.said or spell is None or item.after_seq or not item.text:
                continue
            count = max(row.tokens.completion, row.delivered)
            whole = spell(call.said, count)
            # The output guard releases characters, not tokens: of the token after the last whole one a part may be out.
            begun = whole if item.end == "done" else spell(call.said, count + 1)
            if not begun.startswith(item.text):
                found.append(Violation("text", item.request_id, f"got …{item.text[-60:]!r}, which was never said so"))
            elif item.end == "done" and item.text != whole:
                detail = f"{len(item.text)} characters came, {len(whole)} were billed"
                found.append(Violation("delivered is billed", item.request_id, detail))
    return found


def streams_are_whole(calls: Sequence[Call]) -> list[Violation]:
    """Event ids of a connection rise by one from where it began; its end is said, or it was cut.

    An attempt may go on where another was lost, so the epoch may change to a later attempt's, never back. All
    connections that read one request have the same event at the same place, whichever attempt they have it from.
    """
    found: list[Violation] = []
    events: dict[tuple[str, int], str] = {}
    for item in _connections(calls):
        expected, attempt = item.after_seq, 0
        for event in item.events:
            expected += 1
            if event.seq != expected:
                kind = "gap" if event.seq > expected else "repeat"
                found.append(Violation(kind, item.request_id, f"event {event.seq} came where {expected} was due"))
                break
            if _attempt_of(event.epoch) < attempt:
                found.append(Violation("splice", item.request_id, f"attempt {attempt}, then {event.epoch} before it"))
                break
            attempt = _attempt_of(event.epoch)
            if events.setdefault((item.request_id, event.seq), event.text) != event.text:
                found.append(Violation("changed", item.request_id, f"event {event.seq} is not what it was before"))
                break
    return found


def _attempt_of(epoch: str) -> int:
    number = epoch.partition("-")[0]
    return int(number) if number.isdigit() else 0


def nobody_waits_for_ever(calls: Sequence[Call]) -> list[Violation]:
    """Every call ends within its client's patience, and a client that repeats its call is answered in the end."""
    found = [
        Violation("late", item.request_id, f"{call.name} ({call.kind}) waited longer than its patience")
        for call in calls
        for item in call.connections
        if item.end == "late"
    ]
    return found + [
        Violation("unanswered", "", f"{call.name} ({call.kind}): {_codes(call)}") for call in calls if call.unanswered
    ]


def refusals_are_meant(calls: Sequence[Call]) -> list[Violation]:
    """Whatever dies, a client is told so in words made for it: never a 500, and never an answer that cannot be read."""
    return [
        Violation("internal error", item.request_id, f"{call.name} ({call.kind}): {item.status} {item.code}")
        for call in calls
        for item in call.connections
        if item.status == 500 or item.code in ("internal_error", "not_json")
    ]


def something_was_served(calls: Sequence[Call]) -> list[Violation]:
    """A round that served nobody proves nothing."""
    if any(item.end == "done" for item in _connections(calls)):
        return []
    codes = Counter(item.code or item.end for item in _connections(calls))
    return [Violation("served", "", f"not one answer came to its end: {dict(codes)}")]


def one_key_one_request(calls: Sequence[Call], books: Books) -> list[Violation]:
    """All tries under one Idempotency-Key that were accepted are one request, billed once."""
    found: list[Violation] = []
    billed = {row.request_id for row in books.rows}
    for call in calls:
        if not call.kind.startswith("retry"):
            continue
        seen = {item.request_id for item in call.connections if item.request_id} & billed
        accepted = {item.request_id for item in call.connections if item.is_accepted}
        if len(seen | accepted) > 1:
            found.append(Violation("one key", min(seen | accepted), f"{call.name} became {sorted(seen | accepted)}"))
    return found


def nothing_is_left(books: Books) -> list[Violation]:
    """No hold is open, no counter holds anything, no job waits or runs, no record is unsettled or was refused."""
    left = books.left
    found = [Violation("hold left", hold, "still open when all was quiet") for hold in left.holds]
    found += [Violation("counter held", "", counter) for counter in left.held]
    counts = {
        "job waits": left.waiting,
        "job runs": left.running,
        "unsettled": left.unsettled,
        "usage pending": left.usage_pending,
        "usage refused": left.poisoned,
    }
    return found + [Violation(name, "", f"{count} left when all was quiet") for name, count in counts.items() if count]


def judge(calls: Sequence[Call], books: Books, *, spell: Spell | None) -> list[Violation]:
    """Every invariant on one round."""
    return [
        *accepted_ended_once(calls, books),
        *books_agree(books),
        *attempts_explain_the_bill(books),
        *told_is_billed(calls, books),
        *delivered_is_billed(calls, books, spell=spell),
        *streams_are_whole(calls),
        *nobody_waits_for_ever(calls),
        *refusals_are_meant(calls),
        *something_was_served(calls),
        *one_key_one_request(calls, books),
        *nothing_is_left(books),
    ]


def sums(calls: Sequence[Call], books: Books) -> dict[str, int | str]:
    """The four sums of a round, for the table: output tokens and money by book."""
    rows = {row.request_id: row for row in books.rows if row.revision == 1}
    written = {
        (line.request_id, line.attempt): line.tokens.completion
        for line in books.attempts
        if (row := rows.get(line.request_id)) and row.attempt == line.attempt and row.tokens == line.tokens
    }
    told = {item.request_id: item.usage for item in _connections(calls) if item.usage is not None}
    return {
        "billed_tokens": sum(row.tokens.completion for row in rows.values()),
        "attempt_log_tokens": sum(written.values()),
        "from_frames_tokens": sum(
            row.tokens.completion for row in rows.values() if (row.request_id, row.attempt) not in written
        ),
        "told_tokens": sum(usage.completion for usage in told.values()),
        "clickhouse_cost": str(sum((row.cost for row in books.rows), Decimal(0))),
        "ledger_cost": str(sum((posting.amount for posting in books.postings), Decimal(0))),
    }


def _codes(call: Call) -> dict[str, int]:
    return dict(Counter(item.code or item.end for item in call.connections))


def _connections(calls: Iterable[Call]) -> list[Connection]:
    return [item for call in calls for item in call.connections]
