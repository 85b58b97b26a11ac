"""`Idempotency-Key` on every POST of the management API: a repeat gets the first answer, and nothing happens twice.

The record is written in the transaction of the change itself: both stand or neither. A repeat that comes while the
first runs waits for it; a POST that was refused leaves no record, so it may be corrected under the same key. The answer
is kept encrypted under a secret that the client's own key text is a part of (AES-256-GCM): it may hold a new API key.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Callable
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.db import connection
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import Conflict, InvalidRequest
from stores.secrets import derive
from tenants.api.auth import caller_of
from tenants.api.errors import KeyReused
from tenants.models import IdempotentWrite
from tenants.services.repeats import KEEP

HEADER = "Idempotency-Key"
KEY_MAX = 255
WAIT = "10s"
_NONCE_BYTES = 12
_KEPT_HEADERS = ("ETag", "Cache-Control")


def once(handler: Callable[..., Response], request: Request, *args: Any, **kwargs: Any) -> Response:
    """`handler`'s answer, from now or from the first time. Raises InvalidRequest, KeyReused, and what it raises."""
    text = request.headers[HEADER]
    if not 1 <= len(text) <= KEY_MAX or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequest(f"From 1 to {KEY_MAX} printable ASCII characters without a space.", param=HEADER)
    record = _claim(request, text)
    if record.answer is not None:
        return _replay(record, text)
    response = handler(request, *args, **kwargs)
    if response.status_code < 400:
        kept = {
            "body": json.loads(JSONRenderer().render(response.data) or b"null"),
            "headers": {name: response[name] for name in _KEPT_HEADERS if name in response},
        }
        record.status = response.status_code
        record.answer = _seal(text, record, json.dumps(kept).encode())
        record.save(update_fields=["status", "answer"])
    return response


def _claim(request: Request, text: str) -> IdempotentWrite:
    """This request's record: a new one, or the first's. Raises KeyReused."""
    caller = caller_of(request)
    digest = hashlib.sha256(f"weir idempotency\0{caller.identity}\0{text}".encode()).hexdigest()
    asked = json.dumps([request.method, request.path, request.data], sort_keys=True)
    mine = IdempotentWrite(
        tenant_id=caller.tenant_id,
        caller=caller.identity,
        key_digest=digest,
        request_digest=hashlib.sha256(asked.encode()).hexdigest(),
    )
    rows = IdempotentWrite.objects.filter(caller=caller.identity, key_digest=digest)
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [WAIT])
    rows.filter(created_at__lt=timezone.now() - KEEP).delete()
    IdempotentWrite.objects.bulk_create([mine], ignore_conflicts=True)  # waits for the one that runs
    found = rows.get()
    if found.request_digest != mine.request_digest:
        raise KeyReused("This key was used for another request: send a new key with a new request.", param=HEADER)
    return found


def _replay(record: IdempotentWrite, text: str) -> Response:
    assert record.answer is not None
    kept = json.loads(_open(text, record, bytes(record.answer)))
    return Response(kept["body"], status=record.status, headers={**kept["headers"], "Idempotent-Replayed": "true"})


def _seal(text: str, record: IdempotentWrite, answer: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _ciphers(text)[0].encrypt(nonce, answer, record.id.bytes)


def _open(text: str, record: IdempotentWrite, sealed: bytes) -> bytes:
    """The answer as it was. Raises Conflict where no secret of ours opens it any more."""
    for cipher in _ciphers(text):
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], record.id.bytes)
        except InvalidTag:
            continue
    raise Conflict("This was done before; its answer can no longer be read.", param=HEADER)


def _ciphers(text: str) -> list[AESGCM]:
    """One for each root secret, the one in force first."""
    env = settings.ENV
    secrets = [env.secret.get_secret_value(), *env.old_secrets]
    labelled = [derive(secret, "management-idempotency") for secret in secrets]
    return [AESGCM(hmac.new(key, text.encode(), hashlib.sha256).digest()) for key in labelled]
