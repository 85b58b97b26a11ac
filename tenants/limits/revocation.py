"""The message on `w:revoked` (`contracts.wire`): published by the control plane, read by every gateway."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """What a cached context must not outlive.

    For every message: forget the tenant's cached contexts (`Resolver.forget_tenant`). Cut running requests of
    `revoked_keys`; of all its keys when `suspended`. Lost messages do no harm to admission: the hold script decides.
    """

    tenant_id: str
    revoked_keys: tuple[str, ...]
    suspended: bool
