"""How many GPUs a load needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from encoder_plugins.sizing.capacity import Capacity
from encoder_plugins.sizing.cost_model import Work

# tokens of a word of English in the tokenizers of the served families
TOKENS_PER_WORD = 4 / 3
# the error of the model that the measurements are checked for
WANTED_ERROR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one GPU serves, and how many a load needs.

    Attributes:
        capacity: What it was computed from.
        work: The requests.
        rate: Items a second of a saturated GPU.
        host_bound: Whether the host, rather than the device, takes longer.
        utilization: The part of ``rate`` that a replica is to serve.
        wanted: Items a second in all; None where no load was given.
        replicas: The number of GPUs for ``wanted``; None where no load was given.
    """

    capacity: Capacity
    work: Work
    rate: float
    host_bound: bool
    utilization: float
    wanted: float | None = None
    replicas: int | None = None


def estimate(capacity: Capacity, work: Work, *, wanted: float | None = None, utilization: float = 0.7) -> Estimate:
    """Return what one GPU serves of ``work``, and how many GPUs ``wanted`` items a second need.

    Args:
        capacity: The measured cost model.
        work: The requests.
        wanted: Items a second in all; None to leave the number of replicas out.
        utilization: The part of a saturated GPU's rate that a replica is to serve, above 0 and at most 1.
    """
    rate, cost = capacity.cost.rate(work), capacity.cost
    return Estimate(
        capacity=capacity,
        work=work,
        rate=rate,
        host_bound=cost.host(work) > cost.device(work),
        utilization=utilization,
        wanted=wanted,
        replicas=None if wanted is None else max(1, math.ceil(wanted / (rate * utilization))),
    )


def report(found: Estimate) -> Iterator[str]:
    """Yield the lines of the answer."""
    capacity, work, setup = found.capacity, found.work, found.capacity.setup
    item = capacity.item
    contents = [f"{work.items:g} {_plural(item, work.items)} a request"]
    contents += [f"{work.tokens:g} tokens a {item}"] if item == "text" else []
    contents += [f"{work.labels:g} {_plural('label', work.labels)}"] if "labels" in capacity.measured else []
    yield f"{capacity.plugin} {capacity.shape} ({capacity.weights_bytes >> 20} MiB of weights) on one {capacity.gpu}: {', '.join(contents)}"
    part = "host" if found.host_bound else "device"
    yield f"rate: {found.rate:.3g} {item}s/s per GPU, saturated; the {part} is the limit"
    if found.wanted is not None:
        yield (
            f"replicas: {found.replicas} for {found.wanted:g} {item}s/s at {found.utilization:.0%} utilization"
            f" ({found.wanted / found.rate / (found.replicas or 1):.0%} of each GPU)"
        )
    if nearest := _alone(found):
        yield nearest
    if capacity.memory_bytes is not None:
        yield f"GPU memory: {capacity.memory_bytes / 2**30:.3g} GiB, as `serve` decides batches and engines"
    engines, servers = setup["engines"], setup["api_servers"]
    yield (
        f"measured: {setup['date']}, {setup['dtype']}, {engines} {_plural('engine', engines)} with"
        f" {servers} {_plural('API server', servers)} each, {setup['cores']} cores, which also ran the clients,"
        f" vLLM {setup['versions']['vllm']} ({capacity.source})"
    )
    yield error_of(capacity)
    for phrase in capacity.outside(work):
        yield f"warning: not measured, extrapolated: {phrase}"


def error_of(capacity: Capacity) -> str:
    """Return how far the model is from the measurements, as a sentence."""
    if capacity.worst_error is None:
        return "warning: no line was held out of the fit, so the model's error is not known"
    about = (
        f"{capacity.worst_error:.0%} at most on {capacity.held_out} held-out lines,"
        f" {capacity.worst_fitted_error:.0%} on the {capacity.fitted} fitted ones"
    )
    if capacity.worst_error > WANTED_ERROR:
        return f"warning: the model's error is above {WANTED_ERROR:.0%}: {about}"
    return f"error of the model: {about}"


def _alone(found: Estimate) -> str | None:
    """Return the latency of one request alone, of the measured length nearest to the one that is requested."""
    known = {float(tokens): value for tokens, value in found.capacity.alone_ms.items()}
    if not known:
        return None
    tokens = min(known, key=lambda tokens: abs(tokens - found.work.tokens))
    length = f" of {tokens:g} tokens" if found.capacity.item == "text" else ""
    return f"one {found.capacity.item}{length} alone: {known[tokens]:.3g} ms (p50)"


def _plural(noun: str, number: float) -> str:
    return noun if number == 1 else f"{noun}s"
