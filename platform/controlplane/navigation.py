"""The console's map: its groups and pages, in the order of a request's nine steps. Side bar, home and trails read it.

Invariant: a list is called what its model is called, and every page has one place.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst

PAGES = {"recent_requests": "requests"}  # whose name is not its permission's
SECOND_FACTOR = "mfa_index"
# page that is opened from another -> that other one
PARENTS: Mapping[str, str] = {
    "request_timeline": "recent_requests",
    "tenant_limits": "limits",
    "key_limits": "limits",
    "dead_letter": "dead_letters",
}


@dataclass(frozen=True, slots=True)
class Item:
    """A page, or the list of a model (`app.model`). `hint`: what one goes there for. A list needs no `title`."""

    page: str
    icon: str
    hint: str
    title: str = ""

    @property
    def is_list(self) -> bool:
        return "." in self.page

    @property
    def route(self) -> str:
        """The name of its URL."""
        return f"admin:{self.page.replace('.', '_')}_changelist" if self.is_list else self.page

    @property
    def name(self) -> str:
        """What it is called everywhere."""
        return self.title or capfirst(str(apps.get_model(self.page)._meta.verbose_name_plural))  # noqa: SLF001

    @property
    def link(self) -> str:
        return reverse(self.route)

    @property
    def permission(self) -> str:
        """Who holds it may open the page; empty: everybody in the console."""
        if self.page == SECOND_FACTOR:
            return ""
        app, _, model = self.page.partition(".")
        return f"{app}.view_{model}" if self.is_list else f"controlplane.open_{PAGES.get(self.page, self.page)}"


GROUPS: Mapping[str, tuple[Item, ...]] = {
    "Traffic": (
        Item("recent_requests", "list_alt", "What was asked, how it ended and what it cost", "Recent requests"),
        Item("refusals", "block", "Look a refused request up by its id", "Why refused?"),
        Item("dead_letters", "dangerous", "Requests that killed engines or lost their workers", "Dead letters"),
        Item("limits", "speed", "What of each limit is used, held and free right now", "Limits now"),
        Item("usage", "monitoring", "Tokens and money by tenant, and how fast the answers came", "Usage"),
    ),
    "Customers": (
        Item("tenants.tenant", "apartment", "Who uses the platform: plan, limits, projects; suspend and close"),
        Item("tenants.apikey", "key", "Make, look up and revoke keys"),
        Item("tenants.plan", "workspace_premium", "What tenants get by default: share, limits, prices"),
        Item("tenants.limitsetting", "tune", "Every cap that is set, whosever it is"),
        Item("tenants.auditentry", "history", "Who did what, when and from where"),
        Item("webhooks.endpoint", "webhook", "Where tenants hear of events, and whether it works"),
        Item("webhooks.delivery", "outbox", "What was sent, what waits, what came back"),
    ),
    "Serving": (
        Item("controlplane.servedmodel", "deployed_code", "The models that clients may ask for"),
        Item("engines", "memory", "What runs: exact configuration, workers, their last heartbeats", "Engines"),
        Item("controlplane.engineconfig", "settings_applications", "What each pool's engines are to run, by version"),
        Item("safety.policy", "shield", "Rules on prompts and answers: edit a draft, publish it"),
        Item("safety.policyversion", "verified_user", "Every version that was ever in force"),
    ),
    "Money": (
        Item("billing.priceversion", "sell", "What tokens cost; proposed by one person, approved by another"),
        Item("billing.pricelist", "list", "Prices under a name, for the tenants of a plan"),
        Item("billing.contractterms", "contract", "A tenant's discounts, commitments and days to pay"),
        Item("billing.billingperiod", "event_available", "Months: compare the books, seal, issue"),
        Item("billing.invoice", "receipt_long", "Issued documents: PDF, payments, void"),
        Item("billing.adjustment", "price_change", "Refunds, goodwill and fees on a period's next document"),
        Item("billing.dunningstep", "notification_important", "What tenants were told of overdue documents"),
        Item("billing.creditgrant", "savings", "Prepaid and promotional credit"),
        Item("billing.creditalert", "notifications", "When a tenant hears that credit runs out"),
        Item("billing.ledgertransaction", "account_balance", "Every booking, both sides"),
        Item("billing.ledgeraccount", "account_balance_wallet", "Balances by tenant and kind"),
        Item("billing.usageposting", "receipt", "The requests that the ledger has taken"),
        Item("billing.billingprofile", "home_work", "Whom a tenant's invoices go to"),
        Item("billing.taxrate", "percent", "Tax by country"),
        Item("billing.issuer", "storefront", "Who sells: name, address, series of numbers"),
        Item("billing.receiptkey", "key_vertical", "Public keys that receipts and seals are checked with"),
        Item("billing.billingjob", "task", "Background work of billing: asked for, done, failed"),
    ),
    "Access": (
        Item("auth.user", "person", "Who may sign in here"),
        Item("auth.group", "group", "What each role may open and change"),
        Item("axes.accesslog", "login", "Who signed in, when and from where"),
        Item("axes.accessattempt", "lock", "Wrong passwords and codes that still count"),
        Item(SECOND_FACTOR, "shield_person", "Your authenticator, keys and recovery codes", "My second factor"),
    ),
}

APPS_WITH_LISTS = sorted({item.page.partition(".")[0] for group in GROUPS.values() for item in group if item.is_list})


def items() -> Iterator[tuple[str, Item]]:
    """Every page with its group."""
    for group, members in GROUPS.items():
        for item in members:
            yield group, item


def place_of(route: str) -> tuple[str, Item] | None:
    """The group and item of a page by its URL's name, or of the page that it is opened from."""
    page = SECOND_FACTOR if route.startswith(("mfa_", "account_")) else PARENTS.get(route, route)
    for group, item in items():
        if page == item.page or (item.is_list and page.startswith(f"{item.page.replace('.', '_')}_")):
            return group, item
    return None


def group_link(group: str) -> str:
    """Where a group is shown as a whole."""
    return f"{reverse('admin:index')}#{group.lower()}"


def may_open(item: Item, request: HttpRequest) -> bool:
    """Whether a person may open it: what nobody can open, nobody sees."""
    return not item.permission or request.user.has_perm(item.permission)


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Groups of links for django-unfold."""
    home = {"title": "Home", "icon": "home", "link": reverse("admin:index"), "permission": lambda request: True}
    groups: list[dict[str, Any]] = [{"title": "", "separator": False, "items": [home]}]
    for group, members in GROUPS.items():
        links = [
            {"title": item.name, "icon": item.icon, "link": item.link, "permission": _check(item)} for item in members
        ]
        groups.append({"title": group, "separator": True, "items": links})
    return groups


def account_links(request: HttpRequest) -> list[dict[str, str]]:
    """What the menu under a person's name has, beside the way out."""
    return [
        {"title": "Management API", "link": reverse("api_docs")},
        {"title": "Inference API", "link": reverse("inference_docs")},
        {"title": "My second factor", "link": reverse(SECOND_FACTOR)},
        {"title": "Change password", "link": reverse("admin:password_change")},
    ]


def _check(item: Item) -> Callable[[HttpRequest], bool]:
    return lambda request: may_open(item, request)
