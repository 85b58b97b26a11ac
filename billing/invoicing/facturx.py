"""The electronic invoice beside the printed one: UN/CEFACT CII as Factur-X 1.0 (profile EN 16931) wants it.

Called by `billing.invoicing.files`. Source: EN 16931-1 business terms; tests hold it to the Factur-X schema and to the
business rules of its schematron. A credit note says its amounts positive, under type code 381. A line that takes off is
a quantity of minus one, since a price is never negative.
"""

from datetime import date, timedelta
from decimal import Decimal
from xml.etree import ElementTree as ET

from billing.invoicing.sheet import Party, Sheet, SheetLine

PROFILE = "urn:cen.eu:en16931:2017"
INVOICE, CREDIT_NOTE = "380", "381"
OUTSIDE = "O"  # tax category: not subject to VAT
_RSM = "urn:un:unece:uncefact:data:standard:CrossIndustryInvoice:100"
_RAM = "urn:un:unece:uncefact:data:standard:ReusableAggregateBusinessInformationEntity:100"
_UDT = "urn:un:unece:uncefact:data:standard:UnqualifiedDataType:100"
_MILLION = Decimal(1_000_000)

for _prefix, _uri in (("rsm", _RSM), ("ram", _RAM), ("udt", _UDT)):
    ET.register_namespace(_prefix, _uri)


def facturx_xml(sheet: Sheet) -> bytes:
    """The document as XML, UTF-8."""
    sign = -1 if sheet.is_credit_note else 1
    root = ET.Element(f"{{{_RSM}}}CrossIndustryInvoice")
    context = ET.SubElement(root, f"{{{_RSM}}}ExchangedDocumentContext")
    _text(_child(context, "GuidelineSpecifiedDocumentContextParameter"), "ID", PROFILE)
    head = ET.SubElement(root, f"{{{_RSM}}}ExchangedDocument")
    _text(head, "ID", sheet.number)
    _text(head, "TypeCode", CREDIT_NOTE if sheet.is_credit_note else INVOICE)
    _date(_child(head, "IssueDateTime"), sheet.issued_on)
    _text(_child(head, "IncludedNote"), "Content", f"Period {sheet.month}, days of {sheet.zone}.")
    trade = ET.SubElement(root, f"{{{_RSM}}}SupplyChainTradeTransaction")
    for line in sheet.lines:
        _line(trade, line, sheet, sign)
    agreement = _child(trade, "ApplicableHeaderTradeAgreement")
    taxed = sheet.tax_category != OUTSIDE
    seller, buyer = _child(agreement, "SellerTradeParty"), _child(agreement, "BuyerTradeParty")
    if not (taxed and sheet.seller.tax_id):
        _text(seller, "ID", sheet.seller.tax_id or sheet.seller.legal_name)  # BR-CO-26: it is known by something
    _party(seller, sheet.seller, shows_vat=taxed)
    _party(buyer, sheet.buyer, shows_vat=taxed)
    delivered = _child(_child(trade, "ApplicableHeaderTradeDelivery"), "ActualDeliverySupplyChainEvent")
    _date(_child(delivered, "OccurrenceDateTime"), _last_day(sheet))
    _settlement(_child(trade, "ApplicableHeaderTradeSettlement"), sheet, sign)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def _line(trade: ET.Element, line: SheetLine, sheet: Sheet, sign: int) -> None:
    item = _child(trade, "IncludedSupplyChainTradeLineItem")
    _text(_child(item, "AssociatedDocumentLineDocument"), "LineID", str(line.position))
    _text(_child(item, "SpecifiedTradeProduct"), "Name", line.text)
    net = _child(_child(item, "SpecifiedLineTradeAgreement"), "NetPriceProductTradePrice")
    amount = sign * line.amount
    if line.price and line.tokens is not None:
        _text(net, "ChargeAmount", line.price)
        _text(net, "BasisQuantity", f"{_MILLION}", unitCode="C62")
        quantity = f"{sign * line.tokens}"
    else:
        _text(net, "ChargeAmount", sheet.money(abs(amount)))
        quantity = "-1" if amount < 0 else "1"
    _text(_child(item, "SpecifiedLineTradeDelivery"), "BilledQuantity", quantity, unitCode="C62")
    settlement = _child(item, "SpecifiedLineTradeSettlement")
    _tax(_child(settlement, "ApplicableTradeTax"), sheet)
    total = _child(settlement, "SpecifiedTradeSettlementLineMonetarySummation")
    _text(total, "LineTotalAmount", sheet.money(amount))


def _settlement(parent: ET.Element, sheet: Sheet, sign: int) -> None:
    _text(parent, "InvoiceCurrencyCode", sheet.currency)
    tax = _child(parent, "ApplicableTradeTax")
    _text(tax, "CalculatedAmount", sheet.money(sign * sheet.tax))
    _text(tax, "TypeCode", "VAT")
    if sheet.tax_note:
        _text(tax, "ExemptionReason", sheet.tax_note)
    _text(tax, "BasisAmount", sheet.money(sign * sheet.net))
    _text(tax, "CategoryCode", sheet.tax_category)
    if sheet.tax_category != OUTSIDE:
        _text(tax, "RateApplicablePercent", sheet.tax_percent)
    period = _child(parent, "BillingSpecifiedPeriod")
    _date(_child(period, "StartDateTime"), sheet.period_from[:10])
    _date(_child(period, "EndDateTime"), _last_day(sheet))
    terms = _child(parent, "SpecifiedTradePaymentTerms")
    _date(_child(terms, "DueDateDateTime"), sheet.due_on)
    totals = _child(parent, "SpecifiedTradeSettlementHeaderMonetarySummation")
    _text(totals, "LineTotalAmount", sheet.money(sign * sheet.net))
    _text(totals, "TaxBasisTotalAmount", sheet.money(sign * sheet.net))
    _text(totals, "TaxTotalAmount", sheet.money(sign * sheet.tax), currencyID=sheet.currency)
    _text(totals, "GrandTotalAmount", sheet.money(sign * sheet.total))
    _text(totals, "TotalPrepaidAmount", sheet.money(sheet.credit_used))
    _text(totals, "DuePayableAmount", sheet.money(sign * sheet.due))
    if sheet.corrects:
        _text(_child(parent, "InvoiceReferencedDocument"), "IssuerAssignedID", sheet.corrects)


def _party(parent: ET.Element, party: Party, *, shows_vat: bool) -> None:
    """Outside the scope of VAT no VAT number is named (BR-O-02)."""
    _text(parent, "Name", party.legal_name)
    address = _child(parent, "PostalTradeAddress")
    _text(address, "PostcodeCode", party.postal_code)
    _text(address, "LineOne", party.street)
    _text(address, "CityName", party.city)
    _text(address, "CountryID", party.country)
    if shows_vat and party.tax_id:
        _text(_child(parent, "SpecifiedTaxRegistration"), "ID", party.tax_id, schemeID="VA")


def _tax(parent: ET.Element, sheet: Sheet) -> None:
    _text(parent, "TypeCode", "VAT")
    _text(parent, "CategoryCode", sheet.tax_category)
    if sheet.tax_category != OUTSIDE:
        _text(parent, "RateApplicablePercent", sheet.tax_percent)


def _date(parent: ET.Element, day: str) -> None:
    element = ET.SubElement(parent, f"{{{_UDT}}}DateTimeString", {"format": "102"})
    element.text = f"{date.fromisoformat(day):%Y%m%d}"


def _last_day(sheet: Sheet) -> str:
    """The day before the first one after the period."""
    return (date.fromisoformat(sheet.period_to[:10]) - timedelta(days=1)).isoformat()


def _child(parent: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(parent, f"{{{_RAM}}}{name}")


def _text(parent: ET.Element, name: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, f"{{{_RAM}}}{name}", attributes).text = text
