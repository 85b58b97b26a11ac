"""The text form of API keys, and the names in Redis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.tenancy import Limit, Metric, Scope
from stores.lua import load_scripts
from tenants.auth.keys import ALPHABET, LENGTH, PREFIX, digest, hint_of, looks_valid, mint
from tenants.limits import buckets, keys


class TestMint:
    def test_makes_different_keys_of_one_form(self) -> None:
        minted = {mint() for _ in range(200)}
        assert len(minted) == 200
        assert all(looks_valid(key) and len(key) == LENGTH and key.startswith(PREFIX) for key in minted)

    def test_draws_at_least_160_bits(self) -> None:
        assert len(ALPHABET) == len(set(ALPHABET)) == 62
        assert 62**32 > 2**160


class TestLooksValid:
    def test_refuses_every_single_mistyped_character(self) -> None:
        key = mint()
        for place in range(len(key)):
            other = "x" if key[place] != "x" else "y"
            assert not looks_valid(key[:place] + other + key[place + 1 :])

    @pytest.mark.parametrize("text", ["", "weir_", "sk-123", "weir_" + "é" * 38, "' OR 1=1 --", "weir_" + "\x00" * 38])
    def test_refuses_what_is_no_key(self, text: str) -> None:
        assert not looks_valid(text)

    @given(st.text(max_size=60))
    def test_never_raises(self, text: str) -> None:
        assert looks_valid(text) in (True, False)

    def test_refuses_white_space_around_a_key(self) -> None:
        assert not looks_valid(mint() + "\n")


class TestDigest:
    def test_depends_on_key_and_pepper(self) -> None:
        key = mint()
        assert digest(key, b"a") != digest(key, b"b")
        assert digest(key, b"a") != digest(mint(), b"a")
        assert len(digest(key, b"a")) == 64

    def test_t09_is_hmac_sha256(self) -> None:
        # RFC 4231, test case 2
        assert digest("what do ya want for nothing?", b"Jefe") == (
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        )

    def test_a_hint_shows_four_characters(self) -> None:
        assert len(hint_of(mint())) == 4


class TestNames:
    def test_all_keys_of_a_tenant_are_in_one_slot(self) -> None:
        names = [
            keys.hold("T", "r"),
            keys.holds("T"),
            keys.use("T"),
            keys.epoch("T"),
            keys.idempotency("T", "d"),
            keys.idempotency("T", ""),
        ]
        assert len(set(names)) == len(names)
        assert all("{t:T}" in name for name in names)

    def test_counters_differ_by_scope_and_metric(self) -> None:
        names = {
            keys.counter(Limit(scope=s, metric=m, cap=1), tenant_id="x", project_id="x", api_key_id="x")
            for s in Scope
            for m in Metric
        }
        assert len(names) == len(Scope) * len(Metric)

    def test_every_script_is_loaded(self) -> None:
        folder = buckets.Path(buckets.__file__).parent / "scripts"
        names = {"hold", "start", "settle", "void", "due", "epochs", "usage", "audit", "rebuild", "begin"}
        assert set(load_scripts(folder)) == names
