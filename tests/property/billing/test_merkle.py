"""The tree of RFC 6962 by its own recursive definition, and canonical JSON by RFC 8785."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from billing.proof.verify import canonical, chain, merkle_root


def by_definition(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, without the leaves' own hashing."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + by_definition(leaves[:split]) + by_definition(leaves[split:])).digest()


leaf = st.binary(min_size=32, max_size=32)


class TestMerkleRoot:
    @given(st.lists(leaf, min_size=1, max_size=40))
    def test_is_that_of_the_definition(self, leaves: list[bytes]) -> None:
        assert merkle_root(leaves) == by_definition(leaves).hex()

    @given(st.lists(leaf, min_size=2, max_size=20, unique=True), st.data())
    def test_changes_with_any_leaf_its_place_or_its_absence(self, leaves: list[bytes], data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(leaves) - 1))
        root = merkle_root(leaves)
        assert merkle_root(leaves[:place] + leaves[place + 1 :]) != root
        assert merkle_root([*leaves[:place], bytes(32), *leaves[place + 1 :]]) != root or leaves[place] == bytes(32)
        assert merkle_root(leaves[::-1]) != root

    def test_of_nothing_is_the_hash_of_nothing(self) -> None:
        assert merkle_root([]) == hashlib.sha256(b"").hexdigest()


class TestChain:
    @given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 9)), min_size=1, max_size=8))
    def test_depends_on_every_hour_and_on_what_was_before(self, hours: list[tuple[int, int]]) -> None:
        links = [{"hour_ms": hour, "requests": requests, "root": "00"} for hour, requests in hours]
        head = chain("0", links)
        assert chain("1", links) != head
        assert chain("0", links[:-1]) != head
        assert chain(chain("0", links[:1]), links[1:]) == head


class TestCanonical:
    def test_is_the_text_of_rfc_8785(self) -> None:
        # The example of section 3.2.2, as far as it has texts and whole numbers.
        value = {"numbers": [333, 0], "string": '€$\u000f\nA\'B"\\\\"/', "literals": [None, True, False]}
        told = '{"literals":[null,true,false],"numbers":[333,0],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        assert canonical(value).decode() == told
