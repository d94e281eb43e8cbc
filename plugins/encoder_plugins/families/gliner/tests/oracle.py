"""gliner itself, for tests: these functions run in the library's environment, called through ``encoder_checkpoints.original``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gliner import GLiNER
from gliner.data_processing.tokenizer import WhitespaceTokenSplitter, WordsSplitter
from gliner.decoding import SpanDecoder, TokenDecoder
from gliner.modeling.utils import extract_spans_from_tokens
from numpy.typing import NDArray
from tokenizers import normalizers

Array = NDArray[np.float32]
Span = tuple[int, int, str, float]


@cache
def model(folder: str) -> Any:
    """Load a checkpoint once, in float32."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return GLiNER.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()


def describe(folder: str) -> dict[str, Any]:
    """Return what the library made of configuration and tokenizer."""
    config, tokenizer = model(folder).config, model(folder).data_processor.transformer_tokenizer
    return {
        "config": {
            "hidden_size": config.hidden_size,
            "max_width": config.max_width,
            "max_words": config.max_len,
            "class_token": config.ent_token,
            "class_token_id": config.class_token_index,
            "separator_token": config.sep_token,
            "separator_token_id": tokenizer.convert_tokens_to_ids(config.sep_token),
            "embed_class_token": config.embed_ent_token,
            "lstm_layers": config.num_rnn_layers,
            "projection": hasattr(model(folder).model.token_rep_layer, "projection"),
            "head": "token" if config.span_mode == "token_level" else "span",
            "represent_spans": config.span_mode == "token_level" and config.represent_spans,
        },
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special": list(tokenizer.all_special_tokens),
    }


def parameters(folder: str) -> dict[str, list[int]]:
    """Return the shape of every tensor that the library loads."""
    return {name: list(tensor.shape) for name, tensor in model(folder).model.state_dict().items()}


def tokens(folder: str, word: str) -> list[int]:
    """Return the token ids of one word."""
    tokenizer = model(folder).data_processor.transformer_tokenizer
    found: list[int] = tokenizer([word], add_special_tokens=False, is_split_into_words=True)["input_ids"]
    return found


def with_tokenizer(folder: str, changes: Mapping[str, Any], function: str, *arguments: Any, **options: Any) -> Any:
    """Call another function of this module while the tokenizer is a changed one.

    Args:
        folder: The checkpoint's.
        changes: `limit`: where the tokenizer cuts prompts off; `drop`: the text that it drops before anything else.
        function: Its name; it takes the folder first.
        arguments: Its other arguments.
        options: Likewise.
    """
    tokenizer = model(folder).data_processor.transformer_tokenizer
    backend = tokenizer.backend_tokenizer
    limit, normalizer = tokenizer.model_max_length, backend.normalizer
    tokenizer.model_max_length = changes.get("limit", limit)
    if "drop" in changes:
        backend.normalizer = dropping(normalizer, changes["drop"])
    try:
        return globals()[function](folder, *arguments, **options)
    finally:
        tokenizer.model_max_length, backend.normalizer = limit, normalizer


def dropping(before: Any, text: str) -> Any:
    """Return a normalizer that drops ``text`` and then does what ``before`` does."""
    return normalizers.Sequence([normalizers.Replace(text, ""), *([before] if before else [])])


def batch(folder: str, text: str, labels: Sequence[str]) -> dict[str, Any]:
    """Return what the library would give its model for one text."""
    library = model(folder)
    prepared = library.prepare_batch([text], list(labels))
    found: dict[str, Any] = library.collate_batch(prepared["input_x"], prepared["entity_types"])
    return found


def positions(folder: str, text: str, labels: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """Return the library's token ids, and the tokens that it reads for each word (-1: none) and each label."""
    given = batch(folder, text, labels)
    ids = given["input_ids"][0].tolist()
    words = [-1] * int(given["text_lengths"][0, 0])
    for position, number in enumerate(given["words_mask"][0].tolist()):
        if number:
            words[number - 1] = position
    marked = model(folder).config.class_token_index
    return ids, words, [place for place, token in enumerate(ids) if token == marked]


@torch.inference_mode()
def logits(folder: str, text: str, labels: Sequence[str]) -> Array:
    """Return the library's logits for one text: `[words, widths, labels]`, or `[words, labels, 3]` where words are scored."""
    found: Array = model(folder).run_batch(batch(folder, text, labels)).logits[0].float().numpy()
    return found


@torch.inference_mode()
def proposed(folder: str, text: str, labels: Sequence[str], threshold: float) -> tuple[NDArray[np.int64], Array]:
    """Return the first and the last word of each span that words propose, in the library's order, and its logits `[spans, labels]`."""
    output = model(folder).run_batch(batch(folder, text, labels), threshold=threshold)
    (places,), (mask,), (values,) = output.span_idx, output.span_mask, output.span_logits
    return places[mask].numpy(), values[mask].float().numpy()


@torch.inference_mode()
def label_vectors(folder: str, labels: Sequence[str]) -> Array:
    """Return the library's vectors `[labels, size]`, each label encoded alone: it pads them, which moves their last bits."""
    library = model(folder)
    tokenized = (library.data_processor.labels_tokenizer([label], return_tensors="pt") for label in labels)
    found: Array = torch.cat([library.model.token_rep_layer.encode_labels(**each) for each in tokenized]).numpy()
    return found


@torch.inference_mode()
def logits_of_prompt(folder: str, tokens: Sequence[int], words: Sequence[int]) -> Array:
    """Return the library's logits, as ``logits`` does, for a prompt, given the first token of each word."""
    library = model(folder)
    words_mask = torch.zeros(1, len(tokens), dtype=torch.long)
    for number, position in enumerate(words):
        if position >= 0:
            words_mask[0, position] = number + 1
    widths = library.config.max_width
    starts = torch.arange(len(words)).repeat_interleave(widths)
    ends = starts + torch.arange(widths).repeat(len(words))
    found: Array = (
        library.model(
            input_ids=torch.tensor([list(tokens)]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            words_mask=words_mask,
            text_lengths=torch.tensor([[len(words)]]),
            span_idx=torch.stack([starts, ends], -1)[None],
            span_mask=(ends < len(words))[None],
        )
        .logits[0]
        .float()
        .numpy()
    )
    return found


def entities(folder: str, text: str, labels: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """Return the library's entities of one text."""
    found: list[dict[str, Any]] = model(folder).inference([text], list(labels), **options)[0]
    return found


def decode(
    scores: Array,
    *,
    words: int,
    names: Mapping[int, str],
    flat_ner: bool,
    threshold: float,
    multi_label: bool,
    spans: Sequence[tuple[int, int]] | None = None,
) -> list[Span]:
    """Decode logits `[words, widths, labels]`: first and last word, label and score of each entity."""
    (found,) = SpanDecoder(SimpleNamespace()).decode(
        [["word"] * words],
        dict(names),
        torch.from_numpy(scores)[None],
        flat_ner=flat_ner,
        threshold=threshold,
        multi_label=multi_label,
        input_spans=None if spans is None else [list(spans)],
    )
    return [(span.start, span.end, span.entity_type, span.score) for span in found]


def decode_words(
    scores: Sequence[Array],
    spans: Sequence[Sequence[tuple[int, int]] | None],
    *,
    flat_ner: bool,
    threshold: float,
    multi_label: bool,
) -> list[list[tuple[int, int, int, float]]]:
    """Decode logits `[words, labels, 3]` of several texts: first and last word, number of the label, and score of each entity."""
    decoder = TokenDecoder(SimpleNamespace())
    decoded = []
    for values, chosen in zip(scores, spans, strict=True):
        words, labels, _ = values.shape
        (found,) = decoder.decode(
            [["word"] * words],
            {number + 1: str(number) for number in range(labels)},
            torch.from_numpy(values)[None],
            flat_ner=flat_ner,
            threshold=threshold,
            multi_label=multi_label,
            input_spans=None if chosen is None else [list(chosen)],
        )
        decoded.append([(span.start, span.end, int(span.entity_type), span.score) for span in found])
    return decoded


def decode_proposed(
    scores: Array, spans: Array, *, flat_ner: bool, threshold: float, multi_label: bool
) -> list[tuple[int, int, int, float]]:
    """Decode logits `[words, labels, 3]` that propose spans with logits `[words, width, labels]`; entities as of ``decode_words``."""
    words, labels, _ = scores.shape
    values = torch.from_numpy(spans)
    places, mask = extract_spans_from_tokens(torch.from_numpy(scores)[None], None, threshold)
    first, last = places[0].T
    (found,) = TokenDecoder(SimpleNamespace()).decode(
        [["word"] * words],
        {number + 1: str(number) for number in range(labels)},
        torch.from_numpy(scores)[None],
        span_logits=values[first, last - first][None],
        span_idx=places,
        span_mask=mask,
        flat_ner=flat_ner,
        threshold=threshold,
        multi_label=multi_label,
    )
    return [(span.start, span.end, int(span.entity_type), span.score) for span in found]


def split(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text with their offsets."""
    return list(WhitespaceTokenSplitter()(text))


def splits_by_whitespace(name: str) -> bool:
    """Return whether a splitter's name means the one of ``split``."""
    return isinstance(WordsSplitter(name).splitter, WhitespaceTokenSplitter)


@cache
def _stanza(repositories: tuple[tuple[str, str], ...], languages: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the library's splitter as the recorder sets it up, and the same with the pipelines as stanza makes them."""
    from encoder_plugins.families.gliner.reference import stanza_splitter

    models = {code: Path(folder) for code, folder in repositories}
    ours, bare = (stanza_splitter(models, languages, ("<<ENT>>", "<<SEP>>")) for _ in range(2))
    for language, pipeline in bare._pipelines.items():
        bare._pipelines[language] = pipeline._pipeline
    return ours, bare


def split_by_stanza(
    repositories: tuple[tuple[str, str], ...], languages: tuple[str, ...], text: str, *, bare: bool
) -> list[tuple[str, int | None, int | None]]:
    """Return the words that the library finds with stanza, and their offsets; ``bare`` is without what ``stanza_words`` adds."""
    return list(_stanza(repositories, languages)[bare](text))


def stanza_packages() -> dict[str, str]:
    """Return stanza's default tokenizer of each language, by its code."""
    from stanza.resources.default_packages import default_tokenizer, default_treebanks

    return {**default_treebanks, **default_tokenizer}
