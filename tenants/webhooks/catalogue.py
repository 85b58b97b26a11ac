"""Every domain event by name: what it says, and where it is documented (docs/events.md is written from here).

A test reads the names that the code records and wants each of them here, so that no event is without documentation.
`usage.recorded` of billing rides the same exchange for reports; it is in batches over many tenants and never sent.
"""

from dataclasses import dataclass

TEST = "webhook.test"
NOT_SENT = frozenset({"usage.recorded"})


@dataclass(frozen=True, slots=True)
class Known:
    """`before` and `after` name the fields of the event's two sides."""

    about: str
    subject: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    sent: bool = True  # False: of no single tenant, so for the audit trail only


_TENANT = (
    "name",
    "state",
    "plan",
    "timezone",
    "policy",
    "currency",
    "evaluation_log",
    "cut_to_affordable",
    "queued_max",
    "prepaid",
)
_PLAN = ("name", "weight_milli", "queued_max", "max_tokens_default", "max_tokens_cap", "service_class", "price_list")
_KEY = ("name", "last4", "project", "scopes", "allowed_models", "allowed_networks", "expires_at")
_PRICE = ("price_list", "model", "meter", "per_million", "currency", "valid_from", "valid_to")
_BUDGET = ("metric", "model", "window", "threshold_percent", "cap", "used")
_HOOK = ("origin", "events", "enabled")

EVENTS: dict[str, Known] = {
    "budget.spent": Known(
        "A budget has nothing left: requests that cost are refused. Once for each window and cap.",
        "tenant:<id>, project:<id> or key:<id>",
        after=_BUDGET,
    ),
    "budget.threshold": Known(
        "Spending crossed an alert threshold of a budget. Once for each window, cap and threshold; refuses nothing.",
        "tenant:<id>, project:<id> or key:<id>",
        after=_BUDGET,
    ),
    "credit.low": Known(
        "Prepaid credit fell below the amount of an alert. Once, until it is above again.",
        "tenant:<id>",
        after=("currency", "below", "left"),
    ),
    "invoice.overdue": Known(
        "A document is not paid after its due day: reminder 1, 2 or 3. Nothing is switched off by it.",
        "invoice:<id>",
        after=("number", "level", "due", "currency", "due_at"),
    ),
    "key.changed": Known("Settings of an API key were changed.", "apikey:<id>", before=_KEY, after=_KEY),
    "key.created": Known("An API key was made. Its text is in no event.", "apikey:<id>", after=_KEY),
    "key.expired": Known("An API key came to its end and is refused.", "apikey:<id>", before=_KEY),
    "key.revoked": Known(
        "A key is refused from now on and its streams are cut.", "apikey:<id>", before=_KEY, after=("reason",)
    ),
    "key.rotated": Known(
        "An API key has another text; the one before opens it until `previous_expires_at`.",
        "apikey:<id>",
        before=("last4",),
        after=("last4", "previous_expires_at"),
    ),
    "limit.changed": Known(
        "Limits were set, changed or removed. A field for each metric (and model) named; null is unlimited, 0 blocks.",
        "tenant:<id>, project:<id>, apikey:<id> or plan:<id>",
        before=("<metric>",),
        after=("<metric>",),
    ),
    "member.added": Known("A person got a role.", "member:<id>", after=("user", "role")),
    "member.changed": Known("A person has another role.", "member:<id>", before=("role",), after=("role",)),
    "member.removed": Known("A person's role was taken away.", "member:<id>", before=("user", "role")),
    "operator.locked_out": Known(
        "An operator's account was locked after wrong passwords or codes.", "user:<name>", sent=False
    ),
    "operator.second_factor_added": Known(
        "An operator enrolled a second factor.", "user:<name>", after=("kind",), sent=False
    ),
    "operator.second_factor_removed": Known(
        "An operator's second factor was taken away.", "user:<name>", after=("kind",), sent=False
    ),
    "operator.signed_in": Known("An operator signed in.", "user:<name>", sent=False),
    "plan.changed": Known(
        "Fields of a plan were changed, its price list too.", "plan:<id>", before=_PLAN, after=_PLAN, sent=False
    ),
    "plan.created": Known("A plan was made.", "plan:<id>", after=_PLAN, sent=False),
    "policy.published": Known(
        "A version of a guardrail policy is in force. How many rules, never their text.",
        "policy:<id>",
        after=("name", "version", "rules"),
        sent=False,
    ),
    "price.approved": Known("The second person approved a price.", "price:<id>", after=_PRICE),
    "price.set": Known(
        "A price was set; the one before ends where it begins. A tenant hears of prices of its own.",
        "price:<id>",
        after=_PRICE,
    ),
    "project.created": Known("A project was made.", "project:<id>", after=("name",)),
    "project.deleted": Known(
        "A project was taken off the lists; its keys were revoked.", "project:<id>", before=("name",)
    ),
    "project.renamed": Known("A project has another name.", "project:<id>", before=("name",), after=("name",)),
    "request.replayed": Known(
        "An operator ran a request again that had been set aside: as a new one of the platform's own, on its own bill.",
        "request:<id>",
        after=("replay", "pool"),
    ),
    "tenant.changed": Known("Settings of the tenant were changed.", "tenant:<id>", before=_TENANT, after=_TENANT),
    "tenant.closed": Known(
        "The tenant was ended for good.", "tenant:<id>", before=("state",), after=("state", "reason")
    ),
    "tenant.created": Known("The tenant was made.", "tenant:<id>", after=_TENANT),
    "tenant.resumed": Known(
        "A suspended tenant is let in again.", "tenant:<id>", before=("state",), after=("state", "reason")
    ),
    "tenant.suspended": Known(
        "Every request of the tenant is refused and its streams are cut.",
        "tenant:<id>",
        before=("state",),
        after=("state", "reason"),
    ),
    "webhook.changed": Known("A webhook's URL, description or filter was changed.", "webhook:<id>", _HOOK, _HOOK),
    "webhook.created": Known("A webhook was made.", "webhook:<id>", after=_HOOK),
    "webhook.deleted": Known("A webhook was taken away.", "webhook:<id>", before=_HOOK),
    "webhook.disabled": Known(
        "A webhook was switched off: by a person, for failing long, or for answering 410 Gone.",
        "webhook:<id>",
        after=(*_HOOK, "reason", "failures", "failing_since"),
    ),
    "webhook.enabled": Known("A webhook was switched on again.", "webhook:<id>", after=_HOOK),
    "webhook.replayed": Known(
        "Deliveries were sent once more.", "webhook:<id>", after=("deliveries", "delivery (of one only)")
    ),
    "webhook.secret_rotated": Known(
        "A webhook signs with a new secret; the one before ends after the overlap.",
        "webhook:<id>",
        after=(*_HOOK, "overlap_hours"),
    ),
    TEST: Known(
        "A person asked for a test; goes to one webhook, whatever its filter.", "webhook:<id>", after=("message",)
    ),
}


def table() -> str:
    """The rows of docs/events.md, in Markdown."""
    lines = ["| event | what happened | `subject` | `before` | `after` |", "|---|---|---|---|---|"]
    for name in sorted(EVENTS):
        known = EVENTS[name]
        about = known.about if known.sent else f"{known.about} Audit trail only: it belongs to no single tenant."
        sides = (", ".join(f"`{field}`" for field in side) or "-" for side in (known.before, known.after))
        lines.append(f"| `{name}` | {about} | `{known.subject}` | {' | '.join(sides)} |")
    return "\n".join(lines) + "\n"
