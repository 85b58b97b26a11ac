"""Words of a query string, read strictly: a wrong one is a 400 that names its parameter."""

import re
import uuid
from datetime import datetime

from django.utils.dateparse import parse_datetime

from contracts.errors import InvalidRequest

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
TEXT_MAX = 200
PARAM_SHOWN_MAX = 100


def unknown_parameter(name: str) -> InvalidRequest:
    """What every route answers to a query parameter that means nothing to it."""
    return InvalidRequest("This parameter is not known.", param=name[:PARAM_SHOWN_MAX], code="unknown_parameter")


def is_uuid(text: str) -> bool:
    """Whether `text` is an id in its usual form."""
    return _UUID.fullmatch(text) is not None


def read_id(text: str, *, param: str) -> uuid.UUID:
    """Raises InvalidRequest."""
    if not is_uuid(text):
        raise InvalidRequest("This is not an id.", param=param)
    return uuid.UUID(text)


def read_text(text: str, *, param: str) -> str:
    """Raises InvalidRequest."""
    if not 1 <= len(text) <= TEXT_MAX or "\x00" in text:
        raise InvalidRequest(f"From 1 to {TEXT_MAX} characters.", param=param)
    return text


def read_instant(text: str, *, param: str) -> datetime:
    """An instant with its offset from UTC (RFC 3339). Raises InvalidRequest."""
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidRequest("Write an instant like 2027-01-15T12:00:00Z.", param=param)
    return found


def read_whole(text: str, *, param: str, least: int, most: int) -> int:
    """A whole number in decimal digits. Raises InvalidRequest."""
    if re.fullmatch(r"[0-9]{1,9}", text) is None or not least <= int(text) <= most:
        raise InvalidRequest(f"A whole number from {least} to {most}.", param=param)
    return int(text)
