"""What was measured, as data of this package: ``capacity.json``, written by ``python -m encoder_platform.sizing_page``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from encoder_plugins.errors import BadArgument
from encoder_plugins.sizing.cost_model import Cost, Work

FILE = "capacity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The cost model of one checkpoint shape on one GPU.

    Attributes:
        plugin: The plugin that served it.
        shape: The name of the checkpoint's shape.
        weights_bytes: Of the checkpoint's weights.
        gpu: The device's name, as the driver reports it.
        item: What is counted: ``text`` or ``page``.
        cost: The fitted coefficients.
        worst_error: The largest relative error of the model on lines that it was not fitted to; None if there were none.
        worst_fitted_error: The same on the lines that it was fitted to.
        fitted: The number of lines that the model was fitted to.
        held_out: The number of lines that it was not fitted to.
        measured: The smallest and largest value of each variable: ``items``, ``tokens``, ``labels``.
        alone_ms: Median milliseconds of one request with one item and nothing beside it, by tokens as a string.
        memory_bytes: What the server took of the GPU's memory; None if it was not read.
        setup: dtype, engines, API servers, cores, versions and date of the measurement.
        source: The path of the raw measurements in the repository.
        digest: sha256 of that file.
    """

    plugin: str
    shape: str
    weights_bytes: int
    gpu: str
    item: str
    cost: Cost
    worst_error: float | None
    worst_fitted_error: float
    fitted: int
    held_out: int
    measured: Mapping[str, tuple[float, float]]
    alone_ms: Mapping[str, float]
    memory_bytes: int | None
    setup: Mapping[str, Any]
    source: str
    digest: str

    def outside(self, work: Work) -> list[str]:
        """Return a phrase for each variable of ``work`` that is outside what was measured."""
        values = {"items": work.items, "tokens": work.tokens, "labels": work.labels}
        names = {"items": f"{self.item}s a request", "tokens": f"tokens a {self.item}", "labels": "labels"}
        return [
            f"{values[name]:g} {names[name]} (measured: {low:g} to {high:g})"
            for name, (low, high) in self.measured.items()
            if not low <= values[name] <= high
        ]


def parse(text: str) -> tuple[Capacity, ...]:
    """Return the entries of a data file."""
    return tuple(
        Capacity(
            **{
                **entry,
                "cost": Cost(**entry["cost"]),
                "measured": {name: tuple(bounds) for name, bounds in entry["measured"].items()},
            }
        )
        for entry in json.loads(text)
    )


def committed() -> tuple[Capacity, ...]:
    """Return what this version was measured at; empty if nothing was measured."""
    return parse(resources.files("encoder_plugins.sizing").joinpath(FILE).read_text(encoding="utf-8"))


def select(
    known: Sequence[Capacity], plugin: str, *, gpu: str | None = None, shape: str | None = None, item: str = "text"
) -> Capacity:
    """Return the one entry that the arguments describe.

    Args:
        known: The entries.
        plugin: The plugin's name.
        gpu: Part of the device's name, in any case; None for any.
        shape: The shape's name; None for any.
        item: ``text`` or ``page``.

    Raises:
        BadArgument: There is no such measurement, or more than one; the message lists what was measured.
    """
    found = [
        entry
        for entry in known
        if entry.plugin == plugin
        and entry.item == item
        and (gpu is None or gpu.lower() in entry.gpu.lower())
        and (shape is None or shape == entry.shape)
    ]
    if len(found) == 1:
        return found[0]
    wanted = f"{plugin}{f' {shape}' if shape else ''}, {item}s{f', on {gpu}' if gpu else ''}"
    if found:
        several = "; ".join(f"--shape {entry.shape} --gpu {entry.gpu!r}" for entry in found)
        raise BadArgument(f"several measurements match {wanted}: choose one of {several}")
    listed = "; ".join(f"{entry.plugin} {entry.shape}, {entry.item}s, on {entry.gpu}" for entry in known)
    raise BadArgument(
        f"the capacity of {wanted} was not measured (measured: {listed or 'nothing'}); measure it with"
        " `python -m encoder_bench capacity` in a checkout"
    )
