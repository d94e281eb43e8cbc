"""Decides about the objects beside the pods: Service, route, network policy, disruption budget. Made where asked for, gone where not."""

from __future__ import annotations

from encoder_operator import names
from encoder_operator.canonical import Json
from encoder_operator.errors import NotAccepted
from encoder_operator.facts import Facts
from encoder_operator.manifests import disruption_budget, http_route, network_policy, service
from encoder_operator.model import Model
from encoder_operator.plan import Action, Apply, Delete
from encoder_operator.reasons import Reason


def decide(model: Model, facts: Facts) -> tuple[Action, ...]:
    """Return what to do about them.

    Raises:
        NotAccepted: One that is asked for has the name of somebody else's object.
    """
    route = http_route.render(model) if facts.gateway_api else None
    found: list[Action] = [Apply(service.render(model), facts.service)]
    for kind, wanted, live in (
        ("NetworkPolicy", network_policy.render(model), facts.network_policy),
        ("HTTPRoute", route, facts.http_route),
        ("PodDisruptionBudget", disruption_budget.render(model), facts.budget),
    ):
        if wanted is not None:
            if live is not None and not _ours(model, live):
                raise NotAccepted(
                    Reason.NAME_CONFLICT, f"{kind} {model.name} exists and is not this model's: rename one of them"
                )
            found.append(Apply(wanted, live))
        elif live is not None and _ours(model, live):
            found.append(Delete(kind, model.name))
    return tuple(found)


def routeless(model: Model, facts: Facts) -> bool:
    """Return whether a route is asked for that this cluster can't have."""
    return model.spec.network.http_route is not None and not facts.gateway_api


def _ours(model: Model, live: Json) -> bool:
    labels = live["metadata"].get("labels", {})
    return bool(labels.get(names.MODEL) == model.name and labels.get(names.MANAGED_BY) == names.MANAGER)
