from contracts.errors import BudgetSpent, EngineFailed, LimitExceeded, QueueFull, Unavailable
from gateway.surface import limits
from gateway.surface.errors import duration_text, error_headers, error_object, rate_headers, status_of
from tenants.limits.holds import Headroom


class TestStatedLimits:
    def test_every_limit_is_a_row_of_the_page(self) -> None:
        page = limits.render_limits()
        numbers = {name: value for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)}
        assert len(numbers) == len(limits.stated_limits()) >= 30
        for row in limits.stated_limits():
            assert f"| `{row.name}` | {row.value:,}" in page

    def test_every_number_is_stated_once(self) -> None:
        names = [row.name for row in limits.stated_limits()]
        assert len(set(names)) == len(names)


class TestErrorHeaders:
    def test_a_rate_limit_says_when_to_come_again(self) -> None:
        headers = dict(error_headers(LimitExceeded("slow down", retry_after_ms=1_500)))
        assert headers == {b"retry-after-ms": b"1500", b"retry-after": b"2", b"x-should-retry": b"true"}

    def test_what_waiting_does_not_help_is_not_retried(self) -> None:
        for error in (BudgetSpent("spent"), LimitExceeded("cap 0"), EngineFailed("broken")):
            assert dict(error_headers(error)) == {b"x-should-retry": b"false"}

    def test_busy_is_retried(self) -> None:
        for error in (QueueFull("full", retry_after_ms=10), Unavailable("away", retry_after_ms=5_000)):
            assert dict(error_headers(error))[b"x-should-retry"] == b"true"

    def test_statuses_are_openais(self) -> None:
        assert [status_of(error) for error in (BudgetSpent("x"), QueueFull("x"), Unavailable("x"))] == [402, 429, 503]

    def test_the_error_object_has_a_string_code(self) -> None:
        error = error_object(LimitExceeded("slow down", param=None))["error"]
        assert error == {
            "message": "slow down", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded",
        }  # fmt: skip


class TestRateHeaders:
    def test_remaining_is_never_negative(self) -> None:
        room = Headroom(limit=10, remaining=-3, reset_ms=362_000)
        headers = dict(rate_headers(requests=room, tokens=None))
        assert headers == {
            b"x-ratelimit-limit-requests": b"10",
            b"x-ratelimit-remaining-requests": b"0",
            b"x-ratelimit-reset-requests": b"6m2s",
        }

    def test_durations_read_like_openais(self) -> None:
        assert [duration_text(ms) for ms in (0, 250, 1_000, 1_001, 60_000, 3_600_000)] == [
            "0ms", "250ms", "1s", "2s", "1m0s", "1h0m0s",
        ]  # fmt: skip
