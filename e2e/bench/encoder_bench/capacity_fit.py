"""The cost model of `encoder-plugins size`, fitted to what `encoder_bench capacity` measured. Pure.

Non-negative least squares of relative errors. With host and device added (exponent 1) the model is linear, which gives a start for
larger exponents; among those, the one with the smallest error on the fitted lines is taken. Lines that are held out play no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from encoder_bench.capacity_lines import Cell, Line
from encoder_plugins.sizing.cost_model import Cost, Work

OVERLAPS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
HOST = ("request", "item", "token", "label")
DEVICE = ("device_token", "device_pair", "device_label", "device_token_label")
# numbers that a coefficient is rounded to: measurements are not more precise
DIGITS = 4
# no fewer lines than the coefficients of a plugin with texts and without labels
FEWEST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted model.

    Attributes:
        cost: The coefficients.
        fitted: Relative errors of the lines that it was fitted to: predicted over measured time, less 1.
        held_out: The same of the others.
    """

    cost: Cost
    fitted: Sequence[float]
    held_out: Sequence[float]


def work(cell: Cell) -> Work:
    """Return a cell as the cost model has it."""
    return Work(items=cell.items, tokens=cell.tokens, labels=cell.labels)


def fit(lines: Sequence[Line]) -> Fit:
    """Return the model of the steady lines of one kind of item.

    Raises:
        ValueError: There are too few lines.
    """
    steady = [line for line in lines if line.steady]
    known = [line for line in steady if not line.cell.held_out]
    pages = all(line.cell.item == "page" for line in known)
    if len(known) < (2 if pages else FEWEST_LINES):
        raise ValueError(f"{len(known)} lines are too few to fit a cost model to")
    names = _names(known)
    cost = min((_fitted(known, names, overlap) for overlap in OVERLAPS), key=lambda cost: _loss(cost, known))
    return Fit(
        cost=cost,
        fitted=errors(cost, known),
        held_out=errors(cost, [line for line in steady if line.cell.held_out]),
    )


def errors(cost: Cost, lines: Sequence[Line]) -> list[float]:
    """Return the relative error of the model on each line."""
    return [cost.microseconds(work(line.cell)) / (1e6 / line.rate) - 1 for line in lines]


def _names(lines: Sequence[Line]) -> tuple[str, ...]:
    """Return the coefficients that these lines can distinguish."""
    features = {name: np.asarray([_features(work(line.cell))[name] for line in lines]) for name in (*HOST, *DEVICE)}
    found = [name for name, values in features.items() if values.any()]
    if len({line.cell.labels for line in lines}) == 1:
        found = [name for name in found if "label" not in name]
    if len({line.cell.items for line in lines}) == 1:
        found.remove("request")
    return tuple(found)


def _features(one: Work) -> dict[str, float]:
    return {
        "request": 1 / one.items,
        "item": 1.0,
        "token": one.tokens,
        "label": one.labels,
        "device_token": one.tokens,
        "device_pair": one.tokens**2,
        "device_label": one.labels,
        "device_token_label": one.tokens * one.labels,
    }


def _fitted(lines: Sequence[Line], names: Sequence[str], overlap: float) -> Cost:
    works = [work(line.cell) for line in lines]
    measured = np.asarray([1e6 / line.rate for line in lines])
    features = np.asarray([[_features(one)[name] for name in names] for one in works]) / measured[:, None]
    # of equal size, whatever the unit
    scale = np.linalg.norm(features, axis=0)
    start, _ = optimize.nnls(features / scale, np.ones(len(lines)))
    if overlap != 1:
        hosts = np.asarray([name in HOST for name in names])

        def residuals(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
            parts = features / scale * scaled
            both = np.stack([parts[:, hosts].sum(axis=1), parts[:, ~hosts].sum(axis=1)])
            slower, faster = both.max(axis=0), both.min(axis=0)
            combined = slower * (1 + (faster / np.maximum(slower, 1e-12)) ** overlap) ** (1 / overlap)
            return np.asarray(combined - 1)

        # a start inside the bounds: at zero a coefficient has no slope to leave it by
        start = optimize.least_squares(residuals, np.maximum(start, 0.02 * start.max()), bounds=(0, np.inf)).x
    return Cost(overlap=overlap, **_rounded(dict(zip(names, start / scale, strict=True))))


def _rounded(coefficients: Mapping[str, float]) -> dict[str, float]:
    return {
        name: float(f"{coefficients.get(name, 0.0) if coefficients.get(name, 0.0) > 1e-9 else 0.0:.{DIGITS}g}")
        for name in (*HOST, *DEVICE)
    }


def _loss(cost: Cost, lines: Sequence[Line]) -> float:
    return float(np.square(errors(cost, lines)).sum())
