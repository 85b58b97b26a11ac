"""Personal data with a shape that can be checked: what has a checksum is checked, so that order numbers pass."""

import string
from collections.abc import Callable
from functools import cache
from importlib import import_module

from contracts.text import shown
from safety.rules.port import RuleError
from safety.rules.regex import RegexAutomaton, compile_regex

EMAIL_CHARS_MAX = 254  # RFC 5321, 4.5.3.1.3 less the angle brackets
_IBAN_LENGTHS = {
    "AT": 20, "BE": 16, "BG": 22, "CH": 21, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "EE": 20, "ES": 24, "FI": 18,
    "FR": 27, "GB": 22, "GR": 27, "HR": 21, "HU": 28, "IE": 22, "IS": 26, "IT": 27, "LI": 21, "LT": 20, "LU": 20,
    "LV": 21, "MC": 27, "MT": 31, "NL": 18, "NO": 15, "PL": 28, "PT": 25, "RO": 24, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "TR": 26,
}  # fmt: skip


def is_card_number(text: str) -> bool:
    """Luhn's checksum (ISO/IEC 7812-1) over the digits of `text`, of which not all are the same."""
    digits = [int(char) for char in text if char in string.digits]
    if len(set(digits)) < 2:
        return False
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_iban(text: str) -> bool:
    """ISO 13616: the country's length, and remainder 1 by 97."""
    compact = "".join(char for char in text if char.isalnum()).upper()
    if _IBAN_LENGTHS.get(compact[:2], len(compact)) != len(compact):
        return False
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def is_us_social_security(text: str) -> bool:
    """Areas 000, 666 and 9xx, group 00 and serial 0000 were never given out."""
    area, group, serial = text[:3], text[4:6], text[7:]
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def is_gb_insurance(text: str) -> bool:
    """Prefixes that HMRC never gives out."""
    return text[:2].upper() not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def _by_stdnum(name: str) -> Callable[[str], bool]:
    """The check of python-stdnum's module `name`. Some refuse a day of birth that has not come: they read the date."""
    check: Callable[[str], bool] = import_module(f"stdnum.{name}").is_valid
    return check


_Kind = tuple[str, int | None, Callable[[str], bool] | None]
# What a rule without kinds looks for.
INTERNATIONAL: dict[str, _Kind] = {
    "email": (
        r"\b[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,24}\b",
        EMAIL_CHARS_MAX,
        None,
    ),
    "card": (r"\b(?:[0-9][ -]?){12,18}[0-9]\b", None, is_card_number),
    "iban": (r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}\b", None, is_iban),
    "us_ssn": (r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b", None, is_us_social_security),
    "ipv4": (r"\b(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\b", None, None),
    "phone": (r"\+[1-9](?:[ ().-]{0,2}[0-9]){7,14}\b", None, None),
}
# National numbers, each with its issuer's checksum. Short ones without letters meet it by chance (one number in ten):
# a policy names those it wants.
NATIONAL: dict[str, tuple[str, str | None]] = {
    "be_national_number": (r"\b[0-9]{2}\.?[0-9]{2}\.?[0-9]{2}[ -]?[0-9]{3}[. ]?[0-9]{2}\b", "be.nn"),
    "br_cpf": (r"\b[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}\b", "br.cpf"),
    "ca_sin": (r"\b[1-9][0-9]{2}[ -]?[0-9]{3}[ -]?[0-9]{3}\b", "ca.sin"),
    "ch_ahv": (r"\b756\.?[0-9]{4}\.?[0-9]{4}\.?[0-9]{2}\b", "ch.ssn"),
    "de_tax_id": (r"\b[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}\b", "de.idnr"),
    "es_dni": (r"(?i)\b[0-9]{8}-?[A-Z]\b", "es.dni"),
    "es_nie": (r"(?i)\b[XYZ]-?[0-9]{7}-?[A-Z]\b", "es.nie"),
    "fi_hetu": (r"(?i)\b[0-9]{6}[-+A-FU-Y][0-9]{3}[0-9A-Y]\b", "fi.hetu"),
    "fr_nir": (r"\b[12378] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}\b", "fr.nir"),
    "gb_nhs": (r"\b[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{4}\b", "gb.nhs"),
    "gb_nino": (r"(?i)\b[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]\b", None),
    "in_aadhaar": (r"\b[2-9][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}\b", "in_.aadhaar"),
    "it_codice_fiscale": (
        r"(?i)\b[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPRST][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]\b", "it.codicefiscale",
    ),
    "kr_rrn": (r"\b[0-9]{6}-?[0-9]{7}\b", "kr.rrn"),
    "mx_curp": (r"(?i)\b[A-Z]{4}[0-9]{6}[HMX][A-Z]{5}[0-9A-Z][0-9]\b", "mx.curp"),
    "nl_bsn": (r"\b[0-9]{4}\.?[0-9]{2}\.?[0-9]{3}\b", "nl.bsn"),
    "pl_pesel": (r"\b[0-9]{11}\b", "pl.pesel"),
    "pt_nif": (r"\b[1-9][0-9]{8}\b", "pt.nif"),
    "se_personnummer": (r"\b(?:19|20)?[0-9]{6}[-+][0-9]{4}\b", "se.personnummer"),
    "tr_tckn": (r"\b[1-9][0-9]{10}\b", "tr.tckimlik"),
    "us_itin": (r"\b9[0-9]{2}-[0-9]{2}-[0-9]{4}\b", "us.itin"),
    "za_id": (r"\b[0-9]{13}\b", "za.idnr"),
}  # fmt: skip


def compile_pii(*, kinds: tuple[str, ...] = ()) -> tuple[RegexAutomaton, ...]:
    """Automata for the named kinds, or for the INTERNATIONAL ones. Raises RuleError for an unknown name."""
    unknown = sorted(set(kinds) - set(INTERNATIONAL) - set(NATIONAL))
    if unknown:
        names = ", ".join((*INTERNATIONAL, *NATIONAL))
        raise RuleError(f"unknown kind {shown(unknown[0])}; there are {names}")
    return tuple(automaton for name in kinds or INTERNATIONAL for automaton in _compiled(name))


@cache
def _compiled(name: str) -> tuple[RegexAutomaton, ...]:
    if name in INTERNATIONAL:
        pattern, cap, check = INTERNATIONAL[name]
    else:
        pattern, module = NATIONAL[name]
        cap, check = None, is_gb_insurance if module is None else _by_stdnum(module)
    return compile_regex(pattern=pattern, match_chars_max=cap, check=check)
