"""Checks an invoice against signed receipts, offline. One file: standard library and `cryptography`, nothing of Weir.

    python verify.py PROOF.jsonl --key HEX [--key HEX] [--receipts MINE.jsonl]

PROOF comes with the invoice; HEX is a public key that the issuer has published; MINE holds receipts that the customer
kept. Checked are: every signature; that the receipts make the Merkle root of each hour, and the hours the sealed head;
that tokens times price is the cost; that the receipts make the usage lines; that lines make totals; that each kept
receipt is in the proof, word for word. Exit code 1 and a line for each fault. Nothing is taken from the proof on trust
but the amounts that no receipt can know: discounts, minimums, adjustments and tax.

Sources: RFC 8785 (canonical JSON; values are texts and whole numbers below 2^53), RFC 8032 (Ed25519), RFC 6962 section
2.1 (Merkle tree: 0x00 before leaves, 0x01 before nodes).
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

NO_HEAD = "0" * 64
METERS = ("input", "cached", "output")
HOUR_MS = 3_600_000
NANO = Decimal(10) ** 9
FAULTS_MAX = 100


def canonical(value: Mapping[str, Any]) -> bytes:
    """RFC 8785 of texts, whole numbers, lists and objects with ASCII names."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def leaf_of(receipt: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(b"\x00" + canonical(receipt)).digest()


def merkle_root(leaves: Sequence[bytes]) -> str:
    """RFC 6962: the left part is the largest power of two below the number of leaves. Hex; of nothing, of nothing."""
    level = list(leaves)
    if not level:
        return hashlib.sha256(b"").hexdigest()
    # Pairing neighbours and carrying an odd last one up makes the same tree as splitting at powers of two.
    while len(level) > 1:
        paired = [hashlib.sha256(b"\x01" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        level = paired + ([level[-1]] if len(level) % 2 else [])
    return level[0].hex()


def chain(prev: str, hours: Iterable[Mapping[str, Any]]) -> str:
    """The head after `hours` ({hour_ms, requests, root}) in order."""
    head = prev
    for hour in hours:
        link = {"hour_ms": hour["hour_ms"], "prev": head, "requests": hour["requests"], "root": hour["root"]}
        head = hashlib.sha256(b"weir-seal-v1" + canonical(link)).hexdigest()
    return head


def key_id_of(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:16]


def is_signed(value: Mapping[str, Any], *, key_id: str, signature: str, keys: Mapping[str, bytes]) -> bool:
    """Whether `value` is signed by one of the trusted `keys`."""
    public_key = keys.get(key_id)
    if public_key is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(bytes.fromhex(signature), canonical(value))
    except (InvalidSignature, ValueError):
        return False
    return True


def faults_of(
    proof: Iterable[Mapping[str, Any]], *, keys: Mapping[str, bytes], kept: Iterable[Mapping[str, Any]] = ()
) -> Iterator[str]:
    """What is wrong, in words. `proof`: the head, then signed receipts in their order. Raises KeyError for no proof."""
    lines = iter(proof)
    head = next(lines)
    wanted = {(each["receipt"]["request_id"], each["receipt"]["revision"]): each["receipt"] for each in kept}
    leaves: dict[int, list[bytes]] = {hour["hour_ms"]: [] for hour in head["hours"]}
    used: dict[str, list[int]] = {}
    for each in lines:
        receipt = each["receipt"]
        name = f"receipt {receipt['request_id']}/{receipt['revision']}"
        if not is_signed(receipt, key_id=each["key_id"], signature=each["signature"], keys=keys):
            yield f"{name}: not signed by a key that you trust"
        if receipt["tenant_id"] != head["seal"]["tenant_id"] or receipt["currency"] != head["currency"]:
            yield f"{name}: of another tenant or currency"
        yield from _priced(receipt, name, used)
        hour_ms = receipt["billed_at_ms"] // HOUR_MS * HOUR_MS
        if hour_ms not in leaves or not head["start_ms"] <= receipt["billed_at_ms"] < head["end_ms"]:
            yield f"{name}: ended outside of the period's hours"
        else:
            leaves[hour_ms].append(leaf_of(receipt))
        mine = wanted.pop((receipt["request_id"], receipt["revision"]), None)
        if mine is not None and mine != receipt:
            yield f"{name}: says something else than the one you kept"
    yield from (f"receipt {key[0]}/{key[1]}: you kept it, the proof has none" for key in wanted)
    yield from _sealed(head, leaves, keys)
    yield from _documents(head["documents"], used)


def _priced(receipt: Mapping[str, Any], name: str, used: dict[str, list[int]]) -> Iterator[str]:
    """Adds the receipt's tokens to the usage lines that they belong to."""
    tokens = (
        receipt["prompt_tokens"] - receipt["cached_tokens"], receipt["cached_tokens"], receipt["completion_tokens"]
    )  # fmt: skip
    nano = sum(count * unit for count, unit in zip(tokens, receipt["unit_nano"], strict=True))
    if Decimal(nano) / NANO != Decimal(receipt["cost"]):
        yield f"{name}: cost is not tokens times price"
    for meter, price_id, unit, count in zip(METERS, receipt["price_ids"], receipt["unit_nano"], tokens, strict=True):
        key = f"usage:{receipt['model']}:{receipt['service_class']}:{meter}:{price_id}"
        known = used.setdefault(key, [0, 0])
        known[0] += count
        known[1] += count * unit


def _sealed(head: Mapping[str, Any], leaves: Mapping[int, list[bytes]], keys: Mapping[str, bytes]) -> Iterator[str]:
    seal = head["seal"]
    for hour in head["hours"]:
        if hour["root"] != merkle_root(leaves[hour["hour_ms"]]) or hour["requests"] != len(leaves[hour["hour_ms"]]):
            yield f"hour {hour['hour_ms']}: its receipts do not make the sealed root"
    if chain(seal["prev"], head["hours"]) != seal["head"]:
        yield "the hours do not make the sealed head"
    if not is_signed(seal, key_id=head["key_id"], signature=head["signature"], keys=keys):
        yield "the seal is not signed by a key that you trust"
    if head["documents"][-1]["seal_head"] != seal["head"]:
        yield "the document prints another seal"


def _documents(documents: Sequence[Mapping[str, Any]], used: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Of the period, up to the one that is proved: notes say differences, so they are checked together."""
    billed: dict[str, list[Decimal]] = {}
    for document in documents:
        net = sum((Decimal(line["amount"]) for line in document["lines"]), Decimal(0))
        if net != Decimal(document["net"]) or net + Decimal(document["tax"]) != Decimal(document["total"]):
            yield f"{document['number']}: its lines do not make its total"
        for line in document["lines"]:
            if line["kind"] == "usage":
                known = billed.setdefault(line["key"], [Decimal(0), Decimal(0)])
                known[0] += line["tokens"]
                known[1] += Decimal(line["exact"])
    for key in sorted(billed.keys() | used.keys()):
        tokens, exact = billed.get(key, [Decimal(0), Decimal(0)])
        mine = used.get(key, [0, 0])
        if tokens != mine[0] or exact != Decimal(mine[1]) / NANO:
            yield f"{key}: billed {tokens} tokens for {exact}, receipts have {mine[0]} for {Decimal(mine[1]) / NANO}"


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def main(arguments: Sequence[str], *, write: Callable[[str], object] | None = None) -> int:
    """Exit code. 0: proved. `write` gets one line at a time; the terminal without it."""
    say = write or (lambda line: sys.stdout.write(f"{line}\n"))
    parser = argparse.ArgumentParser(description="Checks an invoice against signed receipts, offline.")
    parser.add_argument("proof", type=Path)
    parser.add_argument("--key", action="append", required=True, help="a public key that the issuer published, in hex")
    parser.add_argument("--receipts", type=Path, help="receipts that you kept, one JSON object a line")
    given = parser.parse_args(arguments)
    keys = {key_id_of(bytes.fromhex(key)): bytes.fromhex(key) for key in given.key}
    kept = read_lines(given.receipts) if given.receipts else ()
    number = 0
    try:
        for number, fault in enumerate(faults_of(read_lines(given.proof), keys=keys, kept=kept), start=1):
            say(fault)
            if number == FAULTS_MAX:
                say("… and no further")
                break
    except (KeyError, TypeError, ValueError, StopIteration, OSError) as error:
        say(f"not a proof: {error!r}")
        return 2
    say("not proved" if number else "proved: receipts, seal, lines and totals agree")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
