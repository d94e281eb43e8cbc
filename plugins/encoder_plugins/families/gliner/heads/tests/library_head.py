"""gliner's own head on encoder rows that are looked up: what test_gliner_span.py compares with.

``Text`` and ``Rows`` are for both sides; ``tensors`` and ``logits`` run in the library's environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.payload import encode

ENCODER = 40
ENT, SEP = 1, 2


@dataclass(frozen=True)
class Text:
    """One text as both sides get it.

    Attributes:
        ids: Token ids; ENT before each label.
        words: The first token of each word, -1 where it was cut off.
    """

    ids: torch.Tensor
    words: list[int]

    @property
    def labels(self) -> list[int]:
        return (self.ids == ENT).nonzero().flatten().tolist()

    def extra(self, threshold: float, classes: int = 0) -> dict[str, Any]:
        return encode(self.words, self.labels, threshold, classes)


def text(words: int, labels: int, *, lost: int = 0, seed: int = 0) -> Text:
    """Make a text whose words and labels have one to three tokens; its last ``lost`` words have none."""
    generator = np.random.default_rng(seed)
    ids = [0]
    for _ in range(labels):
        ids += [ENT, *generator.integers(5, 90, generator.integers(1, 4)).tolist()]
    ids.append(SEP)
    first = []
    for _ in range(words - lost):
        first.append(len(ids))
        ids += generator.integers(5, 90, generator.integers(1, 4)).tolist()
    return Text(torch.tensor([*ids, 3]), first + [-1] * lost)


class Rows(torch.nn.Module):
    """An encoder that looks rows up, and mixes in where they stand."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.words = torch.randn(100, ENCODER, generator=generator)
        self.places = torch.randn(400, ENCODER, generator=generator)
        self.config = SimpleNamespace(hidden_size=ENCODER)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words[ids] + 0.5 * self.places[: len(ids)]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.stack([self.rows(row) for row in input_ids])


class Model(torch.nn.Module):
    """gliner's UniEncoderSpanModel or UniEncoderTokenModel with random weights, behind ``Rows``."""

    def __init__(self, settings: GlinerConfig, seed: int) -> None:
        super().__init__()
        from gliner.modeling.base import UniEncoderSpanModel, UniEncoderTokenModel
        from gliner.modeling.layers import LstmSeq2SeqEncoder, create_projection_layer
        from gliner.modeling.scorers import Scorer
        from gliner.modeling.span_rep import SpanRepLayer

        torch.manual_seed(seed)
        size = settings.hidden_size
        self.by_word = settings.head == "token"
        kind = UniEncoderTokenModel if self.by_word else UniEncoderSpanModel
        model = kind.__new__(kind)
        torch.nn.Module.__init__(model)
        model.config = SimpleNamespace(
            hidden_size=size,
            max_width=settings.max_width,
            class_token_index=ENT,
            embed_ent_token=settings.embed_class_token,
            subtoken_pooling="first",
            represent_spans=settings.represent_spans,
        )
        model.token_rep_layer = torch.nn.Module()
        model.token_rep_layer.rows = Rows()
        if settings.projection:
            model.token_rep_layer.projection = torch.nn.Linear(ENCODER, size)
        if settings.lstm_layers:
            model.rnn = LstmSeq2SeqEncoder(model.config, num_layers=settings.lstm_layers)
        if self.by_word:
            model.scorer = Scorer(size)
            if settings.represent_spans:
                model.span_rep_layer = SpanRepLayer(
                    span_mode="token_level", hidden_size=size, max_width=settings.max_width, dropout=0.1
                )
        else:
            model.span_rep_layer = SpanRepLayer(
                span_mode="markerV0", hidden_size=size, max_width=settings.max_width, dropout=0.1
            )
            model.prompt_rep_layer = create_projection_layer(size, 0.1)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=1.6 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3)
        self.model = model.eval()
        layer = model.token_rep_layer
        project = layer.projection if settings.projection else (lambda rows: rows)
        # how gliner calls its encoder
        layer.forward = lambda ids, mask, **more: project(layer.rows(ids, mask))
        if not self.by_word:
            self.calibrate()

    @torch.no_grad()
    def calibrate(self) -> None:
        """Spread logits around 0, as those of trained checkpoints are."""
        span, label = self.model.span_rep_layer.span_rep_layer.out_project[3], self.model.prompt_rep_layer[3]
        for last in (span, label):
            seen: list[torch.Tensor] = []
            hook = last.register_forward_hook(lambda module, given, found, seen=seen: seen.append(found.flatten(0, -2)))
            self.logits(text(30, 9, seed=77))
            hook.remove()
            last.bias -= seen[0].mean(0)
        factor = 2.0 / self.logits(text(30, 9, seed=77))[0].std()
        label.weight *= factor
        label.bias *= factor

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    @torch.inference_mode()
    def proposed(self, one: Text, threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first and last words `[spans, 2]` of what a text's words propose, and its logits `[spans, labels]`."""
        words_mask = torch.zeros_like(one.ids)
        for number, place in enumerate(one.words):
            if place >= 0:
                words_mask[place] = number + 1
        found = self.model(
            input_ids=one.ids[None],
            attention_mask=torch.ones_like(one.ids)[None],
            words_mask=words_mask[None],
            text_lengths=torch.tensor([[len(one.words)]]),
            threshold=threshold,
        )
        return found.span_idx[found.span_mask], found.span_logits[found.span_mask]

    @torch.inference_mode()
    def logits(self, *texts: Text) -> list[torch.Tensor]:
        """Return `[words, widths, labels]`, or `[words, labels, 3]`, for each text of a padded batch."""
        longest, most = max(len(one.ids) for one in texts), max(len(one.words) for one in texts)
        ids = torch.stack([torch.nn.functional.pad(one.ids, (0, longest - len(one.ids)), value=4) for one in texts])
        mask = torch.stack([(torch.arange(longest) < len(one.ids)).long() for one in texts])
        words_mask = torch.zeros_like(ids)
        for row, one in enumerate(texts):
            for number, place in enumerate(one.words):
                if place >= 0:
                    words_mask[row, place] = number + 1
        widths = self.model.config.max_width
        starts = torch.arange(most).repeat_interleave(widths)
        ends = starts + torch.arange(widths).repeat(most)
        lengths = torch.tensor([[len(one.words)] for one in texts])
        scores = self.model(
            input_ids=ids,
            attention_mask=mask,
            words_mask=words_mask,
            text_lengths=lengths,
            span_idx=torch.stack([starts, ends], -1)[None].expand(len(texts), -1, -1),
            span_mask=ends[None] < lengths,
        ).logits
        kept = [score[: len(one.words)] for score, one in zip(scores, texts, strict=True)]
        if self.by_word:
            return [score[:, : len(one.labels)] for score, one in zip(kept, texts, strict=True)]
        return [score[:, :, : len(one.labels)] for score, one in zip(kept, texts, strict=True)]


@cache
def _model(settings: GlinerConfig, seed: int) -> Model:
    # torch's threads wait by spinning, and there is little to compute
    torch.set_num_threads(1)
    return Model(settings, seed)


def tensors(settings: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return the model's tensors by the names that checkpoints have."""
    return {name: value.numpy() for name, value in _model(GlinerConfig.from_dict(settings), seed).tensors().items()}


def logits(settings: Mapping[str, Any], seed: int, texts: Sequence[tuple[list[int], list[int]]]) -> list[np.ndarray]:
    """Return `[words, widths, labels]` for each text of a padded batch; a text is its token ids and its words' first tokens."""
    given = [Text(torch.tensor(ids), words) for ids, words in texts]
    return [value.numpy() for value in _model(GlinerConfig.from_dict(settings), seed).logits(*given)]


def proposed(
    settings: Mapping[str, Any], seed: int, text: tuple[list[int], list[int]], threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the spans that a text's words propose, and their logits; the text is as for ``logits``."""
    ids, words = text
    found = _model(GlinerConfig.from_dict(settings), seed).proposed(Text(torch.tensor(ids), words), threshold)
    return found[0].numpy(), found[1].numpy()
