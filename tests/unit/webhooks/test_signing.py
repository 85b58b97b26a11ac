"""Signatures, checked by the specification's own library; sealed secrets."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from stores.sealing import Unreadable
from tenants.webhooks import signing

EVENT = UUID("0198a000-0000-7000-8000-0000000000e1")
HOOK = UUID("0198a000-0000-7000-8000-0000000000d1")
OTHER = UUID("0198a000-0000-7000-8000-0000000000d2")
KEY = bytes(range(32))
BODY = '{"type":"key.revoked"}'


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the library compares with the real clock


class TestSignature:
    def test_is_what_the_specification_says(self) -> None:
        secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
        at = datetime(2027, 1, 15, 12, tzinfo=UTC)
        found = signing.headers(event_id=EVENT, body=BODY, at=at, secrets_live=[secret])
        text = f"{EVENT}.{int(at.timestamp())}.{BODY}".encode()
        expected = base64.b64encode(hmac.new(b"k" * 32, text, hashlib.sha256).digest()).decode()
        assert found["webhook-signature"] == f"v1,{expected}"
        assert found["webhook-id"] == str(EVENT)
        assert found["webhook-timestamp"] == "1800014400"

    def test_passes_the_specifications_library_with_either_secret_of_a_rotation(self) -> None:
        new, old, strange = signing.mint(), signing.mint(), signing.mint()
        for at in (now(), now().astimezone(timezone(timedelta(hours=5, minutes=30)))):
            found = signing.headers(event_id=EVENT, body=BODY, at=at, secrets_live=[new, old])
            for secret in (new, old):
                assert Webhook(secret).verify(BODY, found) == {"type": "key.revoked"}
            with pytest.raises(WebhookVerificationError, match="No matching signature"):
                Webhook(strange).verify(BODY, found)
            with pytest.raises(WebhookVerificationError, match="No matching signature"):
                Webhook(new).verify(BODY + " ", found)

    def test_a_replayed_request_is_too_old_after_five_minutes(self) -> None:
        secret = signing.mint()
        found = signing.headers(event_id=EVENT, body=BODY, at=now() - timedelta(minutes=6), secrets_live=[secret])
        with pytest.raises(WebhookVerificationError, match="too old"):
            Webhook(secret).verify(BODY, found)


class TestSealing:
    def test_opens_for_its_own_endpoint_under_its_own_key_only(self) -> None:
        secret = signing.mint()
        sealed = signing.seal(secret, key=KEY, endpoint_id=HOOK)
        assert signing.unseal(sealed, keys=[KEY], endpoint_id=HOOK) == secret
        assert signing.unseal(sealed, keys=[KEY[::-1], KEY], endpoint_id=HOOK) == secret
        assert secret.encode() not in sealed
        assert base64.b64decode(secret.removeprefix("whsec_")) not in sealed
        flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
        for wrong, key, hook in (
            (sealed, KEY[::-1], HOOK),
            (sealed, KEY, OTHER),
            (flipped, KEY, HOOK),
            (b"\x02" + sealed[1:], KEY, HOOK),
            (sealed[:5], KEY, HOOK),
            (b"", KEY, HOOK),
        ):
            with pytest.raises(Unreadable):
                signing.unseal(wrong, keys=[key], endpoint_id=hook)

    def test_never_seals_the_same_way_twice(self) -> None:
        secret = signing.mint()
        assert signing.seal(secret, key=KEY, endpoint_id=HOOK) != signing.seal(secret, key=KEY, endpoint_id=HOOK)
