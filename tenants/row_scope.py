"""Runs a transaction as one tenant: PostgreSQL itself then shows and takes that tenant's rows only.

Used by the management API around everything that a tenant's key or member asks. Invariant: what this sets ends with the
block, by leaving it or by the rollback; nothing of it stays on a pooled connection.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from stores.row_security import enter_tenant, leave_tenant


@contextmanager
def as_tenant(tenant_id: uuid.UUID) -> Iterator[None]:
    """Within the block the connection is `weir_app` for this tenant. Raises RuntimeError outside of a transaction."""
    connection = transaction.get_connection()
    if not connection.in_atomic_block:
        raise RuntimeError("a tenant is entered inside a transaction, which ends it")
    with connection.cursor() as cursor:
        cursor.execute(enter_tenant(), [str(tenant_id)])
    yield
    # After an error the caller rolls back, which undoes it too; there is nothing to send on a broken transaction.
    if not connection.needs_rollback:
        with connection.cursor() as cursor:
            cursor.execute(leave_tenant())
