"""What `encoder_bench capacity` measures, and in which order. Pure.

A cost model is fitted to some lines and checked on others. The others lie between the fitted ones: lengths, labels and texts a request
that the fit has not seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# texts in flight at the same time: several batches of several engines
IN_FLIGHT = 512
# a connection stays with one of up to twelve API servers: with few of them, some servers would have none
MOST_CLIENTS, FEWEST_CLIENTS = 64, 36
# of one request of short texts: what plugins take by default is far more
MOST_TOKENS_A_REQUEST = 16_384
# answers to each client, with which a line has a rate
FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one line is measured with.

    Attributes:
        item: ``text`` or ``page``.
        items: Texts or pages of a request.
        tokens: Of each text; 0 for a page.
        labels: Of each request; 0 for none.
        clients: Requests at the same time.
        held_out: Whether the cost model is checked on this line, rather than fitted to it.
    """

    item: str
    items: int
    tokens: int
    labels: int
    clients: int
    held_out: bool = False

    @property
    def alone(self) -> bool:
        """Whether this is the latency of one request alone, which says nothing about a saturated server."""
        return self.clients == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was measured.

    Attributes:
        cell: What it was measured with.
        seconds: The measured time.
        requests: Answered in it.
        p50_ms: Median latency of a request.
        p99_ms: The 99th percentile.
        processor_ms: Of the server's processors, for one item.
    """

    cell: Cell
    seconds: float
    requests: int
    p50_ms: float
    p99_ms: float
    processor_ms: float

    @property
    def rounds(self) -> float:
        """Answers to each client."""
        return self.requests / self.cell.clients

    @property
    def steady(self) -> bool:
        """Whether the rate is that of a saturated server; with few answers it is chance how many fall into the measured time."""
        return not self.cell.alone and self.rounds >= FEWEST_ROUNDS

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.requests * self.cell.items / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A raw table.

    Attributes:
        plugin: The plugin's name.
        shape: The name of the checkpoint's shape.
        weights_bytes: Of the checkpoint's weights.
        gpu: The device's name; ``CPU`` without one.
        memory_bytes: What the server took of its memory; None if it was not read.
        setup: dtype, processes, cores, versions, driver, date, command.
        lines: In the order in which they were measured.
    """

    plugin: str
    shape: str
    weights_bytes: int
    gpu: str
    memory_bytes: int | None
    setup: Mapping[str, Any]
    lines: Sequence[Line]


def text_cells(tokens: Sequence[int], labels: Sequence[int], most_tokens_in_flight: int) -> Iterator[Cell]:
    """Yield the cells of a plugin that takes texts, the most telling ones first.

    Args:
        tokens: Lengths in ascending order; the first, third, fifth and so on, and the last, are fitted, the others held out.
        labels: The fewest, some in between, the most; empty for a plugin without labels.
        most_tokens_in_flight: More only wait in a queue.
    """
    few, between, many = (*labels,) if labels else (0, 0, 0)
    fitted = [length for place, length in enumerate(tokens) if place % 2 == 0 or place == len(tokens) - 1]
    others = [length for length in tokens if length not in fitted]
    wanted = [
        *((length, items, few, False) for length in fitted for items in (32, 1)),
        *((length, items, few, True) for length in others for items in (32, 1)),
        *((length, items, many, False) for length in fitted[:3] for items in (32, 1) if labels),
        *((length, 8, few, length in others) for length in tokens),
        *((length, items, many, True) for length in others for items in (32,) if labels),
        *((length, 8, between, True) for length in fitted[1:2] if labels),
    ]
    for length, items, count, held_out in wanted:
        if items * length <= MOST_TOKENS_A_REQUEST:
            clients = _clients(items, most_tokens_in_flight // (items * length))
            yield Cell(item="text", items=items, tokens=length, labels=count, clients=clients, held_out=held_out)
    for length in (tokens[0], tokens[-1]):
        yield Cell(item="text", items=1, tokens=length, labels=few, clients=1)


def page_cells() -> Iterator[Cell]:
    """Yield the cells of a plugin that takes images."""
    for items, held_out in ((1, False), (8, False), (2, True), (4, False), (6, True)):
        clients = max(4, 64 // items)
        yield Cell(item="page", items=items, tokens=0, labels=0, clients=clients, held_out=held_out)
    yield Cell(item="page", items=1, tokens=0, labels=0, clients=1)


def _clients(items: int, most: int) -> int:
    # one client would measure its own latency
    return max(2, min(MOST_CLIENTS, max(FEWEST_CLIENTS, IN_FLIGHT // items), most))


def encode(measurement: Measurement) -> str:
    """Return a raw table as JSON, a line for each measured line."""
    head = {name: value for name, value in asdict(measurement).items() if name != "lines"}
    lines = [
        {**asdict(line.cell), **{name: value for name, value in asdict(line).items() if name != "cell"}}
        for line in measurement.lines
    ]
    shown = [f"  {json.dumps(line)}" for line in lines]
    parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    return "{\n" + ",\n".join([*parts, '"lines": [\n' + ",\n".join(shown) + "\n]"]) + "\n}\n"


def decode(text: str) -> Measurement:
    """Return the raw table that ``encode`` wrote."""
    read = json.loads(text)
    names = Cell.__dataclass_fields__
    lines = [
        Line(
            cell=Cell(**{name: value for name, value in line.items() if name in names}),
            **{name: value for name, value in line.items() if name not in names},
        )
        for line in read.pop("lines")
    ]
    return Measurement(**read, lines=lines)


Body = Callable[[Sequence[str], int], dict[str, Any]]
"""Makes the data of a request of texts, and of a number of labels."""
