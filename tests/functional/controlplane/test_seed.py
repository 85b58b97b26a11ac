"""The demo's seed: makes what is missing once, and shows a secret only when it made it."""

from redis import Redis

from billing.selectors import price_card
from controlplane.env import environment
from controlplane.seed import seed_demo
from stores.secrets import KEY_PEPPER, derive
from tenants.auth.keys import digest
from tenants.models import ApiKey, Tenant
from tenants.selectors import load_context


class TestSeedDemo:
    def test_makes_two_tenants_whose_keys_resolve_with_prices_and_a_policy(self, db: None, wired: Redis) -> None:
        demo = seed_demo()
        pepper = derive(environment().secret.get_secret_value(), KEY_PEPPER)
        contexts = [load_context([digest(key, pepper)]) for key in (demo.api_key, demo.other_api_key) if key]
        assert [context.tenant_name for context in contexts if context] == ["Acme", "Basic Bakery"]
        for context in contexts:
            assert context is not None
            assert context.policy is not None
            assert context.queued_max >= 300
            card = price_card(tenant_id=context.tenant_id, model=environment().model, at_ms=2_000_000_000_000)
            assert card is not None
            assert (card.input_nano, card.cached_nano, card.output_nano) == (100, 25, 400)

    def test_changes_nothing_when_repeated(self, db: None, wired: Redis) -> None:
        seed_demo()
        before = (Tenant.objects.count(), ApiKey.objects.count())
        again = seed_demo()
        assert (again.api_key, again.other_api_key, again.admin_password) == (None, None, None)
        assert (Tenant.objects.count(), ApiKey.objects.count()) == before
