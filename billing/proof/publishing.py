"""Public keys in PostgreSQL: read by gateways and verifiers, written when a key begins to sign or is replaced.

Called by the settler when it starts, by `manage.py receipt_key`, and by the reads of the API. Invariant: a key that
signed anything is published, and stays so.
"""

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import transaction

from billing.models import PeriodSeal, ReceiptKey
from billing.proof.signing import Signer, load_key, make_key
from billing.proof.verify import key_id_of
from stores.secrets import derive

LABEL = "usage-receipts"  # of the keys of earlier releases, which were made of the root secret


def published_keys() -> dict[str, bytes]:
    """Key id -> public key, the one that signs now first."""
    rows = list(ReceiptKey.objects.order_by("-published_at"))
    rows.sort(key=lambda row: row.retired_at is not None)
    return {row.key_id: bytes.fromhex(row.public_key) for row in rows}


def open_published(path: Path) -> Signer:
    """The signer of the file, with every other key that is published. Raises KeyRefused."""
    signer = Signer(load_key(path))
    return Signer(signer.private_key, {k: v for k, v in published_keys().items() if k != signer.key_id})


def ensure_key(path: Path, *, now: datetime) -> Signer:
    """The file's key, made where there is none, and published. Raises KeyRefused, OSError."""
    if not path.exists():
        with suppress(FileExistsError):  # another process made it meanwhile
            make_key(path)
    publish(Signer(load_key(path)), now=now)
    return open_published(path)


def rotate_key(path: Path, *, now: datetime) -> Signer:
    """Another key in the file; the one before signs no more and stays published. Raises OSError."""
    if path.exists():
        publish(Signer(load_key(path)), now=now)
    publish(Signer(make_key(path, replace=True)), now=now)
    return open_published(path)


def publish(signer: Signer, *, now: datetime) -> None:
    """This key signs from now on; a repeat changes nothing."""
    with transaction.atomic():
        ReceiptKey.objects.filter(retired_at=None).exclude(key_id=signer.key_id).update(retired_at=now)
        ReceiptKey.objects.get_or_create(
            key_id=signer.key_id, defaults={"public_key": signer.public_key.hex(), "published_at": now}
        )
        ReceiptKey.objects.filter(key_id=signer.key_id).update(retired_at=None)


def publish_derived(secret: str, *, now: datetime) -> bool:
    """Publish the key that an earlier release made of this root secret, where it sealed a period; whether it did."""
    key = Ed25519PrivateKey.from_private_bytes(derive(secret, LABEL)).public_key().public_bytes_raw()
    if not PeriodSeal.objects.filter(key_id=key_id_of(key)).exists():
        return False
    _, created = ReceiptKey.objects.get_or_create(
        key_id=key_id_of(key), defaults={"public_key": key.hex(), "published_at": now, "retired_at": now}
    )
    return created
