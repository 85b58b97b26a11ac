"""ETag and If-Match: a change is made to what its author saw, or not at all.

The tag is a hash of what the answer shows, without what moves by itself. Invariant: it is compared under the row's
lock.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from contracts.errors import InvalidRequest
from tenants.api.errors import Changed, MustMatch

# What a key's use and a webhook's deliveries move, without anybody's having changed it.
_MOVES_BY_ITSELF = frozenset({"last_used_at", "failures", "failing_since", "last_success_at"})
_TAG = re.compile(r'(W/)?"([^"\s]{1,128})"')


def etag_of(shown: Mapping[str, Any]) -> str:
    """The strong tag of one resource as it is shown."""
    fields = {name: value for name, value in sorted(shown.items()) if name not in _MOVES_BY_ITSELF}
    return f'"{hashlib.sha256(JSONRenderer().render(fields)).hexdigest()[:32]}"'


def check_match(request: Request, shown: Mapping[str, Any], *, required: bool) -> None:
    """Raises Changed (412) where If-Match names another version, MustMatch (428) where it is required and absent."""
    header = request.headers.get("If-Match")
    if header is None:
        if required:
            raise MustMatch("Send the ETag of what you change in this header.", param="If-Match")
        return
    if header.strip() == "*":
        return
    tags = _tags(header, "If-Match")
    if etag_of(shown).strip('"') not in {tag for weak, tag in tags if not weak}:
        raise Changed("It was changed since you read it: read it again.", param="If-Match")


def is_unchanged(request: Request, shown: Mapping[str, Any]) -> bool:
    """Whether If-None-Match names what would be shown: a 304."""
    header = request.headers.get("If-None-Match")
    if header is None:
        return False
    return header.strip() == "*" or etag_of(shown).strip('"') in {tag for _, tag in _tags(header, "If-None-Match")}


def _tags(header: str, param: str) -> list[tuple[str, str]]:
    found = [_TAG.fullmatch(part.strip()) for part in header.split(",")]
    if not all(found):
        raise InvalidRequest("This is not an ETag as an answer gave it, quotes included.", param=param)
    return [(match[1] or "", match[2]) for match in found if match]
