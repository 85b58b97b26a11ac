"""Changes to policies. Called by the admin and the seed. Nothing here commits: the caller's transaction does."""

import json
from collections.abc import Sequence
from typing import Any

from django.db import transaction

from safety import publishing, selectors, trying
from safety.document import PolicyError
from safety.models import Policy, PolicyVersion
from safety.policy import CompiledPolicy
from safety.verdicts import Stage


def check_rules(rules: object) -> None:
    """Do these rules make a policy? Raises PolicyError naming each field that does not."""
    _compile(policy_id="draft", version=1, rules=rules)


def create_policy(*, name: str, rules: Sequence[dict[str, Any]], description: str = "") -> Policy:
    """A policy with a checked draft. Raises PolicyError."""
    check_rules(list(rules))
    return Policy.objects.create(name=name, description=description, draft_rules=list(rules))


@transaction.atomic
def publish_policy(*, policy_id: str, published_by: str) -> PolicyVersion:
    """Make the draft the next version, in force for requests admitted from now on. Raises PolicyError.

    The same rules again make no new version. Redis learns of it on commit.
    """
    policy = Policy.objects.select_for_update().get(pk=policy_id)
    current = policy.versions.filter(version=policy.published_version).first()
    if current is not None and current.document["rules"] == policy.draft_rules:
        return current
    version = policy.published_version + 1
    document = _compile(policy_id=str(policy.pk), version=version, rules=policy.draft_rules)
    published = PolicyVersion.objects.create(
        policy=policy, version=version, document=document, published_by=published_by[:150]
    )
    policy.published_version = version
    policy.save(update_fields=["published_version", "updated_at"])
    transaction.on_commit(lambda: publishing.push(document), robust=True)
    return published


def rules_to_try(policy: Policy) -> tuple[str, int | None, list[dict[str, Any]]]:
    """`draft` and its rules; of a policy whose draft is empty `published`, its version and what is in force."""
    if policy.draft_rules or policy.published_version == 0:
        return "draft", None, policy.draft_rules
    document = selectors.policy_document(str(policy.pk), policy.published_version)
    return "published", policy.published_version, document["rules"]


def try_rules(rules: object, *, stage: Stage, text: str, chunks: Sequence[int] = ()) -> dict[str, Any]:
    """What these rules make of a text: fields of `safety.trial.Outcome`. Raises PolicyError, TrialRefused."""
    document = {"id": "trial", "version": 1, "rules": rules}
    return trying.try_document(document, stage=stage, text=text, chunks=chunks)


def _compile(*, policy_id: str, version: int, rules: object) -> dict[str, Any]:
    """The checked document. PostgreSQL's jsonb holds neither NUL nor lone surrogates: refused here, by name."""
    document = {"id": policy_id, "version": version, "rules": rules}
    text = json.dumps(document, ensure_ascii=False)
    if "\\u0000" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise PolicyError([("rules", "holds a NUL or half of a surrogate pair, which cannot be stored")])
    CompiledPolicy.compile(document)
    return document
