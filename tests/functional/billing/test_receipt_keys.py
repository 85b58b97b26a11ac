"""The key of receipts: a file of its own, published, replaced; receipts asked for by those who have no key."""

import asyncio
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import IntegrityError, transaction
from redis.asyncio import Redis

from billing.closing.check import Evidence
from billing.closing.close import seal_period
from billing.models import BillingPeriod, ReceiptKey
from billing.proof.desk import ASKED, ReceiptDesk, reply_key, serve_receipts
from billing.proof.publishing import ensure_key, open_published, publish_derived, published_keys, rotate_key
from billing.proof.signing import KeyRefused, Signer, load_key, make_key
from billing.proof.verify import is_signed
from contracts.errors import Unavailable
from stores.secrets import derive
from tests.functional.billing.months import NOW, Books

AT = datetime(2026, 12, 1, tzinfo=UTC)


class TestFile:
    def test_is_made_once_and_readable_by_its_owner_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "keys" / "receipts.pem"
        made = make_key(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert load_key(path) == made
        with pytest.raises(FileExistsError):
            make_key(path)
        assert make_key(path, replace=True) != made
        assert [each.name for each in path.parent.iterdir()] == ["receipts.pem"]

    def test_is_refused_when_others_may_read_it_or_it_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "receipts.pem"
        with pytest.raises(KeyRefused, match="no receipt key"):
            load_key(path)
        make_key(path)
        path.chmod(0o640)
        with pytest.raises(KeyRefused, match="chmod 600"):
            load_key(path)
        path.chmod(0o600)
        path.write_text("no key")
        with pytest.raises(KeyRefused, match="no private key"):
            load_key(path)

    def test_shows_its_key_to_nobody_who_prints_the_signer(self, tmp_path: Path) -> None:
        secret = make_key(tmp_path / "receipts.pem")
        assert secret.hex() not in repr(Signer(secret))
        assert repr(secret) not in repr(Signer(secret))


@pytest.mark.django_db
class TestPublished:
    def test_keys_stay_when_another_signs(self, tmp_path: Path) -> None:
        path = tmp_path / "receipts.pem"
        first = ensure_key(path, now=AT)
        assert ensure_key(path, now=AT + timedelta(days=1)).key_id == first.key_id
        second = rotate_key(path, now=AT + timedelta(days=2))
        assert list(published_keys()) == [second.key_id, first.key_id]
        assert open_published(path).public_keys == published_keys()
        assert ReceiptKey.objects.get(key_id=first.key_id).retired_at == AT + timedelta(days=2)
        for change in (ReceiptKey.objects.all().delete, lambda: ReceiptKey.objects.update(public_key="0" * 64)):
            with pytest.raises(IntegrityError), transaction.atomic():
                change()

    def test_keys_of_earlier_releases_are_published_where_they_signed(
        self, books: Books, november: BillingPeriod
    ) -> None:
        secret = "a root secret of thirty-two characters"
        assert not publish_derived(secret, now=AT)
        old = Signer(derive(secret, "usage-receipts"))
        seal_period(november, _signed_by(books, old), actor="user:ada", now=NOW)
        assert publish_derived(secret, now=AT)
        assert not publish_derived(secret, now=AT)
        assert published_keys() == {old.key_id: old.public_key}


def _signed_by(books: Books, signer: Signer) -> Evidence:
    return replace(books.evidence(), signer=signer)


class TestDesk:
    async def test_answers_with_what_the_settler_signs_for_this_tenant(self, redis: Redis) -> None:
        signer, asked = Signer(b"k" * 32), []

        def answer(request_id: str, tenant_id: str) -> dict[str, object] | None:
            asked.append((request_id, tenant_id))
            if len(asked) == 1:
                return None  # not metered yet
            return signer.signed_receipt({"request_id": request_id, "tenant_id": tenant_id})

        stop = asyncio.Event()
        desk = ReceiptDesk(redis, mint_nonce=iter(["a", "b", "c"]).__next__)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_receipts(redis, answer=answer, stop=stop))
            await redis.rpush(ASKED, b"not a question")
            found = await desk.receipt(request_id="r", tenant_id="t", seconds=10)
            stop.set()
        assert asked == [("r", "t")] * 2
        assert found is not None
        signed = {"key_id": found["key_id"], "signature": found["signature"], "keys": signer.public_keys}
        assert is_signed(found["receipt"], **signed)
        assert await redis.ttl(reply_key("a")) == -2

    async def test_says_so_when_nobody_signs(self, redis: Redis) -> None:
        desk = ReceiptDesk(redis, mint_nonce=lambda: "a")
        with pytest.raises(Unavailable):
            await desk.receipt(request_id="r", tenant_id="t", seconds=0.1)
