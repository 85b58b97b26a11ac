"""Questions about policies. Called by the control plane (documents that Redis does not hold) and the admin."""

import uuid
from typing import Any

from contracts.tenancy import PolicyRef
from safety.models import Policy, PolicyVersion
from safety.published import PolicyMissing


def policy_document(policy_id: str, version: int) -> dict[str, Any]:
    """The published document of one version. Raises PolicyMissing."""
    try:
        key = uuid.UUID(policy_id)
        found = PolicyVersion.objects.values_list("document", flat=True).get(policy_id=key, version=version)
    except (ValueError, PolicyVersion.DoesNotExist) as error:
        raise PolicyMissing(f"policy {policy_id} version {version}") from error
    assert isinstance(found, dict)
    return found


def find_published(*, policy_id: str) -> PolicyRef | None:
    """The version in force, None when the policy was never published or is not known."""
    try:
        key = uuid.UUID(policy_id)
    except ValueError:
        return None
    version = (
        Policy.objects.filter(pk=key, published_version__gte=1).values_list("published_version", flat=True).first()
    )
    return None if version is None else PolicyRef(policy_id=policy_id, version=version)


def published_refs(*, limit: int) -> list[PolicyRef]:
    """The versions in force, the newest policies first."""
    rows = Policy.objects.filter(published_version__gte=1).order_by("-pk").values_list("pk", "published_version")
    return [PolicyRef(policy_id=str(key), version=version) for key, version in rows[:limit]]
