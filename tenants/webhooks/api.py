"""The webhook API under /api/v1/webhooks: endpoints, their secrets, deliveries, dead letters, replays."""

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.auth import actor_of
from tenants.api.lists import by_choice, by_id, by_text, by_value
from tenants.api.routes import OF_TENANT, Route
from tenants.roles import Action
from tenants.webhooks import selectors, services, shapes
from tenants.webhooks.catalogue import EVENTS
from tenants.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint


@extend_schema_view(list=extend_schema(summary="List webhooks"), retrieve=extend_schema(summary="Read a webhook"))
class EndpointRoute(mixins.ListModelMixin, Route[Endpoint]):
    serializer_class = shapes.EndpointOut
    queryset = Endpoint.objects.all()
    needs = {
        **dict.fromkeys(("list", "retrieve", "events"), Action.READ),
        **dict.fromkeys(("create", "partial_update", "destroy", "rotate_secret"), Action.MANAGE_WEBHOOKS),
        **dict.fromkeys(("test", "enable", "disable", "replay"), Action.MANAGE_WEBHOOKS),
    }
    filters = {
        "tenant": OF_TENANT,
        "url": by_text("url"),
        "state": by_choice(selectors.STANDINGS),
    }

    def get_queryset(self) -> QuerySet[Endpoint]:
        return selectors.endpoints().filter(self.mine())

    @extend_schema(
        summary="Create a webhook; its secret is shown once",
        request=shapes.EndpointIn,
        responses={201: shapes.EndpointCreated},
    )
    def create(self, request: Request) -> Response:
        body = self.body(shapes.EndpointIn)
        tenant = self.one_tenant(body.pop("tenant", None))
        endpoint, secret = services.create_endpoint(tenant=tenant, **body, actor=actor_of(request))
        return self.answer(endpoint, status=201, secret=secret)

    @extend_schema(summary="Change a webhook", request=shapes.EndpointPatch, responses=shapes.EndpointOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        endpoint, changes = self.to_change(must_match=True), self.body(shapes.EndpointPatch, partial=True)
        return self.answer(services.change_endpoint(endpoint=endpoint, changes=changes, actor=actor_of(request)))

    @extend_schema(summary="Delete a webhook", responses={204: None})
    def destroy(self, request: Request, pk: Any = None) -> Response:
        services.delete_endpoint(endpoint=self.to_change(), actor=actor_of(request))
        return Response(status=204)

    @extend_schema(
        summary="Rotate the signing secret; the new one is shown once",
        request=shapes.RotateSecretIn,
        responses={201: shapes.SecretShown},
    )
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: Request, pk: Any = None) -> Response:
        endpoint, overlap = self.to_change(), timedelta(hours=self.body(shapes.RotateSecretIn)["overlap_hours"])
        secret = services.rotate_secret(endpoint=endpoint, overlap=overlap, actor=actor_of(request))
        return Response({"secret": secret}, status=201)

    @extend_schema(summary="Send a test event", request=shapes.NothingIn, responses={202: shapes.DeliveryOut})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: Any = None) -> Response:
        endpoint, _ = self.to_change(), self.body(shapes.NothingIn)
        return Response(shapes.DeliveryOut(services.send_test(endpoint=endpoint)).data, status=202)

    @extend_schema(
        summary="Switch on again, with a clean record", request=shapes.NothingIn, responses=shapes.EndpointOut
    )
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, pk: Any = None) -> Response:
        endpoint, _ = self.to_change(), self.body(shapes.NothingIn)
        return self.answer(services.enable(endpoint=endpoint, actor=actor_of(request)))

    @extend_schema(
        summary="Switch off; what waits becomes dead letters", request=shapes.NothingIn, responses=shapes.EndpointOut
    )
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, pk: Any = None) -> Response:
        endpoint, _ = self.to_change(), self.body(shapes.NothingIn)
        return self.answer(services.disable(endpoint=endpoint, actor=actor_of(request)))

    @extend_schema(
        summary="Send every dead letter again", request=shapes.NothingIn, responses={202: shapes.ReplayedOut}
    )
    @action(detail=True, methods=["post"])
    def replay(self, request: Request, pk: Any = None) -> Response:
        endpoint, _ = self.to_change(), self.body(shapes.NothingIn)
        return Response({"replayed": services.replay_dead(endpoint=endpoint, actor=actor_of(request))}, status=202)

    @extend_schema(summary="Events that can be sent", responses=shapes.KnownEventOut(many=True))
    @action(detail=False, pagination_class=None, filter_backends=[])
    def events(self, request: Request) -> Response:
        self.refuse_parameters(request)
        return Response([{"name": name, "about": known.about} for name, known in sorted(EVENTS.items()) if known.sent])


@extend_schema_view(
    list=extend_schema(summary="List deliveries", description="`state=dead` is the dead-letter list."),
    retrieve=extend_schema(summary="Read a delivery"),
)
class DeliveryRoute(mixins.ListModelMixin, Route[Delivery]):
    serializer_class = shapes.DeliveryOut
    queryset = Delivery.objects.all()
    needs = {"list": Action.READ, "retrieve": Action.READ, "replay": Action.MANAGE_WEBHOOKS}
    filters = {
        "tenant": OF_TENANT,
        "endpoint": by_id("endpoint_id", "Deliveries to this webhook."),
        "event_id": by_id("event_id"),
        "event": by_value("event__name", sorted(EVENTS)),
        "state": by_value("state", list(DeliveryState.values)),
    }

    def get_queryset(self) -> QuerySet[Delivery]:
        return selectors.deliveries().filter(self.mine())

    @extend_schema(summary="Send once more", request=shapes.NothingIn, responses={202: shapes.DeliveryOut})
    @action(detail=True, methods=["post"])
    def replay(self, request: Request, pk: Any = None) -> Response:
        delivery, _ = self.to_change(), self.body(shapes.NothingIn)
        return Response(self.shown(services.replay(delivery=delivery, actor=actor_of(request))), status=202)


@extend_schema_view(
    list=extend_schema(summary="List attempts", description="Every try of every delivery; `delivery` names one."),
    retrieve=extend_schema(summary="Read an attempt"),
)
class AttemptRoute(mixins.ListModelMixin, Route[Attempt]):
    serializer_class = shapes.AttemptOut
    queryset = Attempt.objects.all()
    needs = {"list": Action.READ, "retrieve": Action.READ}
    filters = {
        "tenant": OF_TENANT,
        "delivery": by_id("delivery_id", "Tries of this delivery."),
        "endpoint": by_id("delivery__endpoint_id", "Tries at this webhook."),
    }

    def get_queryset(self) -> QuerySet[Attempt]:
        return Attempt.objects.filter(self.mine())
