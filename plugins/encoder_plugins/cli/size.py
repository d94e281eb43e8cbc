"""`encoder-plugins size`: shows what one GPU serves of a plugin, and how many GPUs a load needs."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict

from encoder_plugins import catalog
from encoder_plugins.errors import BadArgument
from encoder_plugins.sizing import capacity, estimate
from encoder_plugins.sizing.cost_model import Work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("plugin", help="a plugin's name")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--tokens", type=_positive, help="tokens of each text, without labels")
    length.add_argument("--words", type=_positive, help="words of each text: English, 4 tokens for 3 words")
    length.add_argument("--pages", action="store_true", help="size for images of pages, instead of texts")
    parser.add_argument(
        "--labels", type=_positive, help="labels of each request (default: the fewest that were measured)"
    )
    parser.add_argument(
        "--per-request", type=_positive, default=1, metavar="NUMBER", help="texts or pages of each request (default: 1)"
    )
    parser.add_argument("--rate", type=_positive, help="texts or pages a second that all replicas together must serve")
    parser.add_argument("--utilization", type=_share, default=0.7, help="part of a GPU's rate to use (default: 0.7)")
    parser.add_argument("--gpu", help="part of the GPU's name, such as H200")
    parser.add_argument("--shape", help="the checkpoint's shape, where several were measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _positive(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("not a number above 0")
    return value


def _share(text: str) -> float:
    value = _positive(text)
    if value > 1:
        raise argparse.ArgumentTypeError("not a number above 0 and at most 1")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError("not a number")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; return 0.

    Raises:
        UnknownPlugin: There is no such plugin.
        BadArgument: The plugin, shape or GPU was not measured, or takes no labels.
    """
    plugin = catalog.get(arguments.plugin)
    item = "page" if arguments.pages else "text"
    entry = capacity.select(capacity.committed(), plugin.name, gpu=arguments.gpu, shape=arguments.shape, item=item)
    labels = entry.measured.get("labels")
    if arguments.labels is not None and labels is None:
        raise BadArgument(f"--labels: {plugin.name} was measured without labels")
    tokens = 0.0 if arguments.pages else arguments.tokens or arguments.words * estimate.TOKENS_PER_WORD
    work = Work(
        items=arguments.per_request,
        tokens=math.ceil(tokens),
        labels=0.0 if labels is None else arguments.labels or labels[0],
    )
    found = estimate.estimate(entry, work, wanted=arguments.rate, utilization=arguments.utilization)
    if arguments.json:
        print(json.dumps(asdict(found) | {"outside": entry.outside(work)}))
    else:
        print("\n".join(estimate.report(found)))
    return 0
