"""Plan the Service, HTTPRoute, NetworkPolicy and PodDisruptionBudget: apply what the spec requests, delete the rest."""

from __future__ import annotations

from encoder_operator.planner.actions import Action, Apply, Delete
from encoder_operator.resources import http_route, network_policy, pod_disruption_budget, service
from encoder_operator.state import ownership
from encoder_operator.state.desired import EncoderModel
from encoder_operator.state.observed import ObservedState
from encoder_operator.status.reasons import Reason
from encoder_operator.validation.errors import NotAccepted


def plan(model: EncoderModel, observed: ObservedState) -> tuple[Action, ...]:
    """Return the actions for these objects.

    Raises:
        NotAccepted: A requested object's name is taken by an object that does not belong to the model.
    """
    route = http_route.build(model) if observed.gateway_api else None
    budget = pod_disruption_budget.build(model, shared=model.has_shared_volume(observed.pvc))
    found: list[Action] = [Apply(service.build(model), observed.service)]
    for kind, wanted, live in (
        ("NetworkPolicy", network_policy.build(model), observed.network_policy),
        ("HTTPRoute", route, observed.http_route),
        ("PodDisruptionBudget", budget, observed.disruption_budget),
    ):
        if wanted is not None:
            if live is not None and not ownership.belongs_to(live, model.name, model.uid):
                raise NotAccepted(
                    Reason.NAME_CONFLICT,
                    f"{kind} {model.name} already exists and does not belong to this EncoderModel; rename one of them",
                )
            found.append(Apply(wanted, live))
        elif live is not None and ownership.belongs_to(live, model.name, model.uid):
            found.append(Delete(kind, model.name))
    return tuple(found)


def gateway_api_missing(model: EncoderModel, observed: ObservedState) -> bool:
    """Return whether the spec requests an HTTPRoute that the cluster does not support."""
    return model.spec.network.http_route is not None and not observed.gateway_api
