"""The demo's seed: makes what is missing once, and shows a secret only when it made it."""

from django.contrib.auth.models import User
from redis import Redis

from billing.selectors import price_card
from controlplane.env import environment
from controlplane.seed import seed_demo
from safety.models import Policy
from stores.secrets import KEY_PEPPER, derive
from tenants.auth.keys import digest
from tenants.models import ApiKey, Plan, Project, Tenant
from tenants.selectors import load_context
from tenants.services import revoke_key


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

    def test_finds_the_demo_by_its_keys_whatever_it_is_called_by_now(self, db: None, wired: Redis) -> None:
        demo = seed_demo()
        for model in (Tenant, Project, ApiKey, Plan, Policy):
            for row in model.objects.all():
                model.objects.filter(pk=row.pk).update(name=f"Renamed {row.pk}")
        User.objects.filter(username="admin").update(username="ada")
        before = [model.objects.count() for model in (Tenant, Project, ApiKey, Plan, Policy, User)]
        again = seed_demo(known=(demo.api_key, demo.other_api_key))
        assert (again.api_key, again.other_api_key, again.admin_password) == (None, None, None)
        assert again.admin_user == "ada"
        assert [model.objects.count() for model in (Tenant, Project, ApiKey, Plan, Policy, User)] == before

    def test_makes_a_new_key_where_the_known_one_was_revoked(self, db: None, wired: Redis) -> None:
        demo = seed_demo()
        for key in ApiKey.objects.all():
            revoke_key(key=key)
        again = seed_demo(known=(demo.api_key, demo.other_api_key))
        assert again.api_key not in (None, demo.api_key)
        assert Tenant.objects.count() == 2
