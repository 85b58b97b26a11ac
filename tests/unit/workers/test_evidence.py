"""The tail of an engine's log: whole lines, bounded, whatever is in the file."""

from pathlib import Path

from workers.evidence import TAIL_BYTES, read_tail


class TestTail:
    def test_is_the_whole_of_a_short_log(self, tmp_path: Path) -> None:
        log = tmp_path / "engine.log"
        log.write_bytes(b"first\nlast, without an end")
        assert read_tail(log) == "first\nlast, without an end"

    def test_is_the_last_whole_lines_of_a_long_one(self, tmp_path: Path) -> None:
        log = tmp_path / "engine.log"
        log.write_bytes(b"".join(b"line %d\n" % number for number in range(10_000)))
        tail = read_tail(log)
        assert tail.endswith("line 9998\nline 9999\n")
        assert tail.startswith("line ")
        assert TAIL_BYTES - 16 < len(tail) <= TAIL_BYTES

    def test_reads_what_is_no_text(self, tmp_path: Path) -> None:
        log = tmp_path / "engine.log"
        log.write_bytes(b"\xff\x00ok\n")
        assert read_tail(log) == "\ufffd\x00ok\n"

    def test_of_no_log_is_empty(self, tmp_path: Path) -> None:
        assert read_tail(tmp_path / "none") == ""
