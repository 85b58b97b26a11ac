"""What a final frame that is no answer tells the client."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts import errors
from contracts.errors import WeirError
from contracts.outcomes import Outcome
from fairqueue.messages import Final, final_of
from gateway.surface.errors import (
    Gone,
    HeadTooLarge,
    InternalError,
    ReadTimeout,
    UpgradeRequired,
    error_object,
    failure_of,
    status_of,
)
from tests.factories.jobs import make_record


def final(**changes: object) -> Final:
    return replace(final_of(make_record(), cost_nano=0), **changes)


class TestFailureOf:
    def test_tells_the_field_that_the_engine_refused(self) -> None:
        refused = final(
            outcome=Outcome.FAILED,
            status=400,
            error_code="invalid_value",
            error_message="The engine does not take this value of `temperature`.",
            error_param="temperature",
        )
        error = failure_of(refused)
        assert error is not None
        assert status_of(error) == 400
        assert error_object(error) == {
            "error": {
                "message": "The engine does not take this value of `temperature`.",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": "invalid_value",
            }
        }

    def test_names_no_field_where_none_is_known(self) -> None:
        error = failure_of(final(outcome=Outcome.FAILED, status=502, error_code="engine_error", error_message="x"))
        assert error is not None
        assert error.param is None

    def test_tells_of_a_revoked_key_as_the_next_request_will(self) -> None:
        error = failure_of(final(outcome=Outcome.CANCELLED, status=401, error_code="key_revoked", error_message="x"))
        assert error is not None
        assert error_object(error)["error"] | {"message": ""} == {
            "message": "", "type": "authentication_error", "param": "Authorization", "code": "key_revoked",
        }  # fmt: skip

    def test_is_none_for_a_whole_answer(self) -> None:
        assert failure_of(final()) is None


class TestParam:
    @pytest.mark.parametrize(
        ("kind", "part"),
        [
            (errors.InvalidRequest, "request"),
            (errors.AuthFailed, "Authorization"),
            (errors.PermissionDenied, "Authorization"),
            (errors.NotFound, "path"),
            (errors.MethodNotAllowed, "method"),
            (errors.Conflict, "Idempotency-Key"),
            (errors.TooLarge, "body"),
            (errors.UnsupportedMedia, "Content-Type"),
            (errors.Revoked, "Authorization"),
            (ReadTimeout, "body"),
            (UpgradeRequired, "Upgrade"),
            (HeadTooLarge, "headers"),
            (Gone, "starting_after"),
        ],
    )
    def test_names_the_part_of_the_request_where_no_field_is_known(self, kind: type[WeirError], part: str) -> None:
        assert error_object(kind("wrong"))["error"]["param"] == part
        assert error_object(kind("wrong", param="x"))["error"]["param"] == "x"

    @pytest.mark.parametrize(
        "error", [errors.LimitExceeded("x"), errors.BudgetSpent("x"), errors.Unavailable("x"), InternalError()]
    )
    def test_is_null_where_nothing_in_the_request_is_wrong(self, error: WeirError) -> None:
        assert error_object(error)["error"]["param"] is None

    def test_and_message_are_bounded(self) -> None:
        shown = error_object(errors.InvalidRequest("m" * 10_000, param="p" * 10_000))["error"]
        assert (len(shown["message"]), len(shown["param"])) == (1_024, 256)
