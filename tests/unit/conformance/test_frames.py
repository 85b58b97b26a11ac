"""WebSocket frames: as the RFC writes them, and read back."""

from __future__ import annotations

import pytest

from infra.conformance.case import Wrong
from infra.conformance.frames import CLOSE, PING, TEXT, Frame, close, frame, parse_frames


class TestFrames:
    def test_are_those_of_the_rfc(self) -> None:
        """Section 5.7: a masked text of "Hello", and an unmasked one."""
        assert frame(TEXT, b"Hello").hex() == "818537fa213d7f9f4d5158"
        assert frame(TEXT, b"Hello", masked=False).hex() == "810548656c6c6f"

    @pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
    def test_of_a_server_are_read_back(self, size: int) -> None:
        sent = frame(TEXT, b"x" * size, masked=False) + frame(CLOSE, b"\x0f\xa0", masked=False)
        read = list(parse_frames(sent))
        assert read == [Frame(opcode=TEXT, payload=b"x" * size), Frame(opcode=CLOSE, payload=b"\x0f\xa0")]
        assert read[1].code == 4_000

    def test_that_are_cut_off_are_not_there_yet(self) -> None:
        assert list(parse_frames(frame(TEXT, b"Hello", masked=False)[:-1])) == []

    @pytest.mark.parametrize(
        "sent",
        [
            frame(TEXT, b"a"),
            frame(TEXT, b"a", masked=False, reserved=4),
            frame(3, masked=False),
            frame(PING, b"a" * 126, masked=False),
            frame(PING, fin=False, masked=False),
        ],
    )
    def test_that_no_server_may_send_are_wrong(self, sent: bytes) -> None:
        with pytest.raises(Wrong):
            list(parse_frames(sent))

    def test_of_a_close_carry_code_and_reason(self) -> None:
        assert len(close(1000, b"bye")) == 2 + 4 + 5
