"""GET /api/v1/policies and POST /api/v1/policies/{id}/try: guardrail policies, and what they make of a text.

Operators see every policy; who leads a tenant sees the tenant's. Invariant: a text that is tried is in the answer and
nowhere else, so no `Idempotency-Key` keeps that answer.
"""

import re
from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import Conflict, InvalidRequest, LimitExceeded, Unavailable
from controlplane.policies import shapes
from safety import services
from safety.document import PolicyError
from safety.models import Policy
from safety.trying import TRIAL_SECONDS_MAX, TrialRefused, TrialsBusy
from safety.verdicts import Stage
from tenants.api.auth import caller_of
from tenants.api.lists import by_choice, by_text
from tenants.api.routes import Route
from tenants.api.versions import check_match
from tenants.roles import Action

_AGAIN_MS = 1_000
_INDEX = re.compile(r"\[(\d+)\]")


@extend_schema_view(
    list=extend_schema(summary="List guardrail policies"), retrieve=extend_schema(summary="Read a guardrail policy")
)
class PolicyRoute(mixins.ListModelMixin, Route[Policy]):
    serializer_class = shapes.PolicyOut
    queryset = Policy.objects.all()
    needs = dict.fromkeys(("list", "retrieve", "try_text"), Action.READ_POLICIES)
    filters = {
        "name": by_text("name"),
        "published": by_choice(
            {"true": lambda: Q(published_version__gte=1), "false": lambda: Q(published_version=0)}, "Was published."
        ),
    }
    unkept = frozenset({"try_text"})

    def get_queryset(self) -> QuerySet[Policy]:
        policies = Policy.objects.all()
        if caller_of(self.request).is_operator:
            return policies
        return policies.filter(id__in=self.tenants().values("policy_id"))

    @extend_schema(
        summary="Try a guardrail policy on a text",
        description="Runs the draft (where it is empty, the published rules; with `document`, those) as on a request, "
        "and tells what each rule did, what leaves, and when. Nothing is changed, stored or logged, so an "
        f"`Idempotency-Key` keeps nothing either. It ends after {TRIAL_SECONDS_MAX:.0f} seconds at the latest.",
        request=shapes.TryIn,
        responses=shapes.TrialOut,
    )
    @action(detail=True, methods=["post"], url_path="try")
    def try_text(self, request: Request, pk: Any = None) -> Response:
        policy = self.get_object()
        check_match(request, self.shown(policy), required=False)
        body = self.body(shapes.TryIn)
        given = body.get("document")
        origin, version, rules = services.rules_to_try(policy) if given is None else ("document", None, given["rules"])
        stage = Stage(body["stage"])
        try:
            found = services.try_rules(rules, stage=stage, text=body["text"], chunks=body["chunks"])
        except PolicyError as error:
            raise _refusal(error, named=given is not None) from error
        except TrialsBusy as error:
            raise LimitExceeded(str(error), retry_after_ms=_AGAIN_MS) from error
        except TrialRefused as error:
            raise Unavailable(str(error), retry_after_ms=_AGAIN_MS) from error
        told = {"origin": origin, "version": version, "stage": stage.value, **found}
        return Response(shapes.TrialOut(told).data)


def _refusal(error: PolicyError, *, named: bool) -> InvalidRequest | Conflict:
    """Of the body's document, with the field; a draft that was saved compiles, unless by another release."""
    field, message = error.errors[0]
    if not named:
        return Conflict(f"This draft does not make a policy here: {field}: {message}")
    return InvalidRequest(message, param="document." + _INDEX.sub(r".\1", field))
