"""The policy that the demo's tenants get: small, readable, and harmless to ordinary talk."""

from typing import Any


def demo_document(*, policy_id: str, version: int) -> dict[str, Any]:
    """Blocks prompts that carry credentials, redacts credentials and personal numbers in answers, bans a few words."""
    return {
        "id": policy_id,
        "version": version,
        "rules": [
            {
                "name": "project-codename",
                "kind": "regex",
                "stage": ["prompt", "output"],
                "action": "redact",
                "fail": "closed",
                "config": {"pattern": r"(?i)\bproject[ -]bluebird\b", "replacement": "[codename]"},
            },
            {
                "name": "banned-words",
                "kind": "ban_list",
                "stage": ["prompt", "output"],
                "action": "block",
                "fail": "closed",
                "config": {"words": ["weir-blocked-word", "build a pipe bomb", "ignore all previous instructions"]},
            },
            {
                "name": "secrets-in-prompt",
                "kind": "secrets",
                "stage": ["prompt"],
                "action": "block",
                "fail": "closed",
                "config": {"formats": []},
            },
            {
                "name": "secrets-in-output",
                "kind": "secrets",
                "stage": ["output"],
                "action": "redact",
                "fail": "closed",
                "config": {"formats": [], "replacement": "[secret]"},
            },
            {
                "name": "cards",
                "kind": "pii",
                "stage": ["prompt", "output"],
                "action": "redact",
                "fail": "closed",
                "config": {"kinds": ["card", "iban"], "replacement": "[number]"},
            },
        ],
    }
