"""Numbers as issuers make them, checksum included, and numbers that only look so. Pure: a function of the generator.

Cards and IBANs are made by their published arithmetic, written anew here; national numbers by drawing from their shape
until python-stdnum accepts one, which is the rule's own check: there the score tells of shape and surroundings alone.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from importlib import import_module

DRAWS_MAX = 20_000
_CARDS = (("4", 16), ("51", 16), ("2221", 16), ("34", 15), ("37", 15), ("6011", 16), ("3530", 16), ("30", 14))
_IBAN_SHAPES = {
    "DE": "##################", "FR": "#####" "#####" "###########" "##", "NL": "AAAA##########", "ES": "#" * 20,
    "GB": "AAAA##############", "CH": "#" * 17, "AT": "#" * 16, "BE": "#" * 12, "NO": "#" * 11, "PL": "#" * 24,
}  # fmt: skip
_STATES = ("DF", "JC", "NL", "MC", "VZ", "OC", "PL", "BC")
_CONSONANTS = "BCDFGLMNPRSTV"
# Letters are upper case, `#` a digit, `A` a letter, `{…}` a part of its own.
SHAPES = {
    "be_national_number": ("{yymmdd:.}-###.##", "be.nn"),
    "br_cpf": ("###.###.###-##", "br.cpf"),
    "ca_sin": ("{1-7}## ### ###", "ca.sin"),
    "ch_ahv": ("756.####.####.##", "ch.ssn"),
    "de_tax_id": ("{1-9}# ### ### ###", "de.idnr"),
    "es_dni": ("########A", "es.dni"),
    "es_nie": ("{XYZ}#######A", "es.nie"),
    "fi_hetu": ("{ddmmyy}-###{check}", "fi.hetu"),
    "fr_nir": ("{12} ## {01-12} {01-95} {001-900} ### ##", "fr.nir"),
    "gb_nhs": ("### ### ####", "gb.nhs"),
    "gb_nino": ("{ABCEHJ}{ABCEHJ} ## ## ## {ABCD}", ""),
    "in_aadhaar": ("{2-9}### #### ####", "in_.aadhaar"),
    "it_codice_fiscale": ("{cons6}{60-99}{ABCDEHLMPRST}{01-28}{AFHL}{001-900}A", "it.codicefiscale"),
    "kr_rrn": ("{yymmdd}-{12}{0-8}#####", "kr.rrn"),
    "mx_curp": ("{cons1}{AEIOU}{cons1}{cons1}{yymmdd}{HM}{state}{cons3}{0-9}#", "mx.curp"),
    "nl_bsn": ("####.##.###", "nl.bsn"),
    "pl_pesel": ("{yymmdd}#####", "pl.pesel"),
    "pt_nif": ("{12}########", "pt.nif"),
    "se_personnummer": ("{yymmdd}-####", "se.personnummer"),
    "tr_tckn": ("{1-9}##########", "tr.tckimlik"),
    "us_itin": ("9##-{70-88}-####", ""),
    "za_id": ("{yymmdd}####08#", "za.idnr"),
}
NATIONAL = tuple(SHAPES)
_NEVER_GIVEN = {"gb_nino": "{BG|GB|KN|NK|NT|TN|ZZ} ## ## ## {ABCD}", "us_itin": "9##-{10-49}-####"}  # no checksum


def card(source: random.Random) -> str:
    """A number of an issuer's range with Luhn's check digit, as people write it."""
    digits = _card_body(source)
    return _grouped(source, digits + str(_luhn(digits)))


def no_card(source: random.Random) -> str:
    """The same with another last digit."""
    digits = _card_body(source)
    return _grouped(source, digits + str((_luhn(digits) + source.randint(1, 9)) % 10))


def iban(source: random.Random) -> str:
    """A country's own shape with ISO 7064's two check digits, in print or electronic form."""
    return _iban(source, off=0)


def no_iban(source: random.Random) -> str:
    """The same with other check digits."""
    return _iban(source, off=source.randint(1, 90))


def national(kind: str, source: random.Random, *, valid: bool = True) -> str:
    """A number of `kind`, or, of its shape, one that its issuer's check refuses. Raises ValueError."""
    shape, module = SHAPES[kind]
    if kind in _NEVER_GIVEN:
        return fill(shape if valid else _NEVER_GIVEN[kind], source)
    check: Callable[[str], bool] = import_module(f"stdnum.{module}").is_valid
    for _ in range(DRAWS_MAX):
        text = fill(shape, source)
        if check(text) is valid:
            return text
    raise ValueError(f"no {kind} in {DRAWS_MAX} draws")


def fill(shape: str, source: random.Random) -> str:
    """A text of this shape."""
    parts, rest = [], shape
    while rest:
        if rest[0] == "{":
            name, _, rest = rest[1:].partition("}")
            parts.append(_part(name, source))
            continue
        head, rest = rest[0], rest[1:]
        drawn = {"#": string.digits, "A": string.ascii_uppercase}.get(head)
        parts.append(head if drawn is None else source.choice(drawn))
    return "".join(parts)


def _part(name: str, source: random.Random) -> str:
    day, month, year = source.randint(1, 28), source.randint(1, 12), source.randint(60, 99)
    match name:
        case "yymmdd":
            return f"{year}{month:02}{day:02}"
        case "yymmdd:.":
            return f"{year}.{month:02}.{day:02}"
        case "ddmmyy":
            return f"{day:02}{month:02}{year}"
        case "state":
            return source.choice(_STATES)
        case "check":
            return source.choice("0123456789ABCDEFHJKLMNPRSTUVWXY")
    if "|" in name:
        return source.choice(name.split("|"))
    if name.startswith("cons"):
        return "".join(source.choices(_CONSONANTS, k=int(name[4:])))
    low, dash, high = name.partition("-")
    return f"{source.randint(int(low), int(high)):0{len(low)}}" if dash else source.choice(name)


def _card_body(source: random.Random) -> str:
    prefix, length = source.choice(_CARDS)
    return prefix + "".join(source.choices(string.digits, k=length - len(prefix) - 1))


def _luhn(digits: str) -> int:
    total = 0
    for index, char in enumerate(reversed(digits)):
        value = int(char) * (2 - index % 2)
        total += value - 9 if value > 9 else value
    return -total % 10


def _grouped(source: random.Random, digits: str) -> str:
    mark = source.choice((" ", "-", ""))
    return mark.join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _iban(source: random.Random, *, off: int) -> str:
    country = source.choice(sorted(_IBAN_SHAPES))
    body = fill(_IBAN_SHAPES[country], source)
    number = int("".join(str(int(char, 36)) for char in f"{body}{country}00"))
    check = 98 - number % 97
    if off:
        check = (check - 2 + off) % 97 + 2
    text = f"{country}{check:02}{body}"
    return text if source.random() < 0.5 else " ".join(text[at : at + 4] for at in range(0, len(text), 4))
