"""A month from its requests to a proof that the customer's own verifier takes, and no forgery of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from billing.closing.close import correct_period, open_periods, seal_period
from billing.invoicing.files import build_files
from billing.invoicing.issue import issue_document
from billing.invoicing.sheet import sheet_of
from billing.models import BillingPeriod, BillingProfile, Invoice, Issuer, PeriodSeal
from billing.proof import verify
from billing.proof.pack import NoProof, proof_of
from billing.proof.publishing import publish
from billing.proof.receipts import find_receipt
from billing.proof.signing import Signer
from billing.proof.verify import NO_HEAD, faults_of
from tests.functional.billing.months import END, LARGE, NOW, SIGNER, START, Books

pytestmark = pytest.mark.django_db

Proof = list[dict[str, Any]]


@pytest.fixture
def invoice(books: Books, november: BillingPeriod) -> Invoice:
    """Of four requests in three hours, one of them at the last millisecond."""
    for at in (START, START + timedelta(minutes=5), START + timedelta(days=9), END - timedelta(milliseconds=1)):
        books.use(at, counts=LARGE)
    address = {"street": "1", "postal_code": "1", "city": "NYC"}
    Issuer.objects.create(legal_name="Weir", country="US", **address)
    BillingProfile.objects.create(tenant=books.tenant, legal_name="Acme", country="NP", **address)
    seal_period(november, books.evidence(), actor="user:ada", now=NOW)
    made = issue_document(period_id=november.pk, actor="user:ada", now=NOW)
    assert made is not None
    return made


def proof(books: Books, document: Invoice) -> Proof:
    return [json.loads(line) for line in proof_of(document, reader=books.clickhouse, signer=SIGNER)]


def faults(found: Proof, *, kept: Proof | None = None, signer: Signer = SIGNER) -> list[str]:
    return list(faults_of(found, keys=signer.public_keys, kept=kept or []))


class TestSeal:
    def test_is_chained_from_month_to_month_and_printed(self, books: Books, invoice: Invoice) -> None:
        november = PeriodSeal.objects.get()
        assert (november.prev_head, november.requests) == (NO_HEAD, 4)
        assert invoice.seal_head == november.head
        assert november.head in build_files(sheet_of(invoice))["html"].decode()
        later = END + timedelta(days=40)
        december = open_periods(tenant_id=books.tenant.pk, now=later)[1]
        mark = books.evidence().watermark
        seal_period(december, books.evidence(type(mark)(low_ms=2**53, letters=(), cut=())), actor="a", now=later)
        assert PeriodSeal.objects.get(period=december).prev_head == november.head
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            PeriodSeal.objects.update(head=NO_HEAD)


class TestProof:
    def test_holds_for_an_honest_month_and_the_customer_s_own_receipts(self, books: Books, invoice: Invoice) -> None:
        found = proof(books, invoice)
        assert len(found) == 5
        assert faults(found) == []
        mine = find_receipt(books.clickhouse, request_id=books.records[0].request_id)
        assert mine is not None
        kept = SIGNER.signed_receipt(mine)
        assert kept in found
        assert faults(found, kept=[kept]) == []
        assert find_receipt(books.clickhouse, request_id=books.records[0].request_id, tenant_id="other") is None

    @pytest.mark.parametrize(
        ("forge", "told"),
        [
            (lambda p: p[1]["receipt"].update(completion_tokens=100_001), "not signed"),
            (lambda p: p.pop(2), "do not make the sealed root"),
            (lambda p: p.append(p[1]), "do not make the sealed root"),
            (lambda p: p[0]["hours"].pop(), "ended outside of the period's hours"),
            (lambda p: p[0]["seal"].update(head="0" * 64), "the seal is not signed"),
            (lambda p: p[0]["documents"][0].update(seal_head="0" * 64), "prints another seal"),
            (lambda p: p[0]["documents"][0]["lines"][0].update(tokens=9_999), "billed 9999 tokens"),
            (lambda p: p[0]["documents"][0].update(total="1000"), "do not make its total"),
        ],
    )
    def test_fails_for_a_forged_one(
        self, books: Books, invoice: Invoice, forge: Callable[[Proof], object], told: str
    ) -> None:
        found = proof(books, invoice)
        forge(found)
        assert any(told in fault for fault in faults(found))

    def test_fails_when_a_kept_receipt_says_something_else_or_is_left_out(self, books: Books, invoice: Invoice) -> None:
        found = proof(books, invoice)
        other = {"receipt": {**found[1]["receipt"], "cost": "0.1"}}
        missing = {"receipt": {**found[1]["receipt"], "request_id": "x"}}
        assert [fault.partition(": ")[2] for fault in faults(found, kept=[other, missing])] == [
            "says something else than the one you kept",
            "you kept it, the proof has none",
        ]

    def test_trusts_no_other_key(self, books: Books, invoice: Invoice) -> None:
        stranger = Signer(b"the private key of somebody else")
        assert len(faults(proof(books, invoice), signer=stranger)) == 5
        rotated = Signer(stranger.private_key, SIGNER.public_keys)
        assert faults(proof(books, invoice), signer=rotated) == []

    def test_holds_for_a_note_with_the_documents_before_it(
        self, books: Books, invoice: Invoice, november: BillingPeriod
    ) -> None:
        for _ in range(5):
            books.use(START + timedelta(hours=3), counts=LARGE)
        assert correct_period(november, books.evidence(), now=NOW) == 2
        note = issue_document(period_id=november.pk, actor="user:ada", now=NOW)
        assert note is not None
        assert faults(proof(books, note)) == []
        with pytest.raises(NoProof):
            proof(books, invoice)
        first, second = PeriodSeal.objects.order_by("revision")
        assert second.prev_head == first.head


class TestStandAlone:
    def test_is_one_file_that_needs_nothing_of_ours(self, books: Books, invoice: Invoice, tmp_path: Path) -> None:
        (tmp_path / "verify.py").write_bytes(Path(verify.__file__).read_bytes())
        path = tmp_path / "proof.jsonl"
        path.write_text("\n".join(json.dumps(each) for each in proof(books, invoice)) + "\n")
        [key] = SIGNER.public_keys.values()

        def run(*words: str) -> tuple[int, str]:
            command = [sys.executable, "-I", "verify.py", "proof.jsonl", "--key", key.hex(), *words]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
            return done.returncode, done.stdout

        assert run() == (0, "proved: receipts, seal, lines and totals agree\n")
        path.write_text(path.read_text().replace('"cost": "0.86"', '"cost": "0.87"', 1))
        code, told = run()
        assert code == 1
        assert "cost is not tokens times price" in told
        path.write_text("{}\n")
        assert run()[0] == 2


class TestCommands:
    @pytest.fixture(autouse=True)
    def _wired(self, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("invoice", "receipt"):
            monkeypatch.setattr(f"billing.management.commands.{module}.usage_reader", lambda: books.clickhouse)
        for module in ("invoice", "receipt"):
            monkeypatch.setattr(f"billing.management.commands.{module}.open_signer", lambda: SIGNER)
        publish(SIGNER, now=NOW)

    def test_write_a_proof_and_verify_it(self, books: Books, invoice: Invoice, tmp_path: Path, capsys: Any) -> None:
        path, kept = str(tmp_path / "proof.jsonl"), tmp_path / "kept.jsonl"
        call_command("invoice", "prove", invoice.number, "--to", path)
        call_command("receipt", books.records[2].request_id)
        kept.write_text(capsys.readouterr().out.splitlines()[-1])
        call_command("verify_invoice", path, "--receipts", str(kept))
        assert "proved" in capsys.readouterr().out
        with pytest.raises(CommandError, match="not proved"):
            call_command("verify_invoice", path, "--key", "00" * 32)
        call_command("receipt", "--keys")
        assert capsys.readouterr().out.splitlines()[-1].split()[0] == SIGNER.key_id
        for words in (("receipt",), ("receipt", "0190-no-id")):
            with pytest.raises(CommandError):
                call_command(*words)
