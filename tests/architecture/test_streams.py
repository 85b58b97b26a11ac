"""Tokens ride Redis' own channels, with the log behind them, never a Channels layer, which drops what is too much."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("platform", "tenants", "workers", "safety", "billing")
LAYER = re.compile(r"channels\.layers|get_channel_layer|\.channel_layer\b|\.group_(send|add)\b")


class TestStreams:
    def test_nothing_is_sent_over_a_channel_layer(self) -> None:
        """channels_redis#96: over its capacity a layer loses messages, and says nothing."""
        sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
        assert [str(path) for path in sources if LAYER.search(path.read_text(encoding="utf-8"))] == []
