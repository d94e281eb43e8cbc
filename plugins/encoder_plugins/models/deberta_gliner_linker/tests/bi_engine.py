"""A bi-encoder's processor on real vLLM in this process, and what both heads are compared with the library on."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_checkpoints.sentence import WORDS
from encoder_plugins.families.gliner.processor import Parsed
from encoder_plugins.families.gliner.request import EntityRequest
from encoder_plugins.inputs import body as bodies
from encoder_plugins.parity.tests.served_model import Served, pooled
from encoder_plugins.plugin import resolve
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Prompt, ServingContext
from encoder_plugins.serving.rounds import ENGINE, Round, advance

LABELS = [
    "person",
    "company: American technology company, maker of the iPhone",
    "city",
    "date of birth",
    "pays où l'on vit",
    "人物",
    "sports team " * 6,
    "river",
]
TEXTS = [
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "👩‍🚀 İstanbul'da re\u0301sume\u0301\r\n東京は日本の首都。",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June. " * 5,
    "<<ENT>> [SEP] one",
]
# sums over other batches end in other bits
LOGIT, SCORE, VECTOR = 1e-4, 2.5e-5, 5e-5
DIGEST = "sha256:" + "0" * 64


class Model:
    """The plugin's processor, and the engine that it runs on."""

    def __init__(self, served: Served, sets: Path | None = None) -> None:
        self.served = served
        self.sets = sets
        self.engine = served.engine(served.model)

    def processor(self, **values: int) -> Any:
        """Return a processor with limits other than the defaults."""
        context = ServingContext(
            model=self.served.model,
            max_model_len=self.engine.model_config.max_model_len,
            names=("m",),
            limits=limits.defaults(self.served.plugin) | values,
            dtype="float32",
            digest=DIGEST,
            label_sets=self.sets,
        )
        return resolve(self.served.plugin.processor)(context)

    def prompts(self, text: str, labels: Sequence[str], **options: Any) -> Sequence[Prompt]:
        """Return what the engine gets for a text."""
        parsed: Parsed = self.processor().prepare(EntityRequest(text=text, labels=list(labels), **options))
        return parsed.prompts

    def tables(self, prompts: Sequence[Prompt]) -> list[torch.Tensor]:
        """Return what the pooler answers to prompts of one call."""
        return pooled(self.engine, self.served.plugin, Round(prompts, None))

    def answer(self, data: Mapping[str, Any], **values: int) -> dict[str, Any]:
        """Return the answer to a request."""
        ours = self.processor(**values)
        running = ours.run(ours.parse(self.served.plugin.routes[0], bodies.encode(data)), ENGINE)
        step = advance(running)
        while isinstance(step, Round):
            step = advance(running, pooled(self.engine, self.served.plugin, step))
        found: dict[str, Any] = json.loads(step.body)["data"]
        return found


def requests() -> list[tuple[str, list[str]]]:
    """Texts of 1 to 120 words, with 1 to 8 labels in many orders."""
    generator = random.Random(0)
    counts = [1, 5, 17, 40, 3, 120, 64, 17, 2, 90, 11, 1]
    return [
        (" ".join((WORDS * 8)[number : number + count]), generator.sample(LABELS, 1 + number % len(LABELS)))
        for number, count in enumerate(counts)
    ]


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Compare entities one by one and in order."""
    assert [{**entity, "score": 0} for entity in ours] == [{**entity, "score": 0} for entity in theirs]
    assert [entity["score"] for entity in ours] == pytest.approx([entity["score"] for entity in theirs], abs=SCORE)
