"""Step 2, AUTH: the text form of API keys. Pure but for `mint`, which draws random bits.

A key is `weir_` + 32 base62 characters (190 random bits) + 6 base62 characters of CRC-32 over what stands before them,
so that a mistyped key is told apart without a look-up and a leaked one is found by scanners. Only its HMAC-SHA256 under
a pepper is ever stored. Invariant: no function here keeps, logs or returns part of a key but `mint` and `hint_of`.
"""

import hashlib
import hmac
import secrets
import zlib

PREFIX = "weir_"
RANDOM_CHARACTERS = 32
CHECK_CHARACTERS = 6
LENGTH = len(PREFIX) + RANDOM_CHARACTERS + CHECK_CHARACTERS
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALLOWED = frozenset(ALPHABET)


def mint() -> str:
    """A new key in plain text: shown to its owner once, kept nowhere."""
    body = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARACTERS))
    return body + _check(body)


def looks_valid(text: str) -> bool:
    """Whether `text` has the form of a key and a right checksum; says nothing about whether the key exists."""
    if len(text) != LENGTH or not text.startswith(PREFIX):
        return False
    if not _ALLOWED.issuperset(text[len(PREFIX) :]):
        return False
    return text[-CHECK_CHARACTERS:] == _check(text[:-CHECK_CHARACTERS])


def digest(text: str, pepper: bytes) -> str:
    """HMAC-SHA256 of a key under the pepper, 64 hex digits: what is stored and looked up."""
    return hmac.new(pepper, text.encode(), hashlib.sha256).hexdigest()


def hint_of(text: str) -> str:
    """The last four characters: what lists and logs may show."""
    return text[-4:]


def _check(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = ""
    for _ in range(CHECK_CHARACTERS):
        value, index = divmod(value, len(ALPHABET))
        digits = ALPHABET[index] + digits
    return digits
