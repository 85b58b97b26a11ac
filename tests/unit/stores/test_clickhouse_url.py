"""The URL of the local meter holds any path whole."""

from pathlib import Path

import pytest

from stores.clickhouse_url import local_url, socket_path


class TestSocketPath:
    @pytest.mark.parametrize("name", ["plain", "h#x", "w?y=1", "50%41", "sp ace's [b]*", "ü", "a+b&c"])
    def test_is_what_the_url_was_made_of(self, name: str) -> None:
        path = Path("/home") / name / "run" / "meter.sock"
        assert socket_path(local_url(path)) == path

    @pytest.mark.parametrize("url", ["chdb+unix:///a#b/meter.sock", "chdb+unix:///a?b/meter.sock", "chdb+unix://a"])
    def test_is_never_a_part_of_a_path(self, url: str) -> None:
        with pytest.raises(ValueError, match="absolute"):
            socket_path(url)
