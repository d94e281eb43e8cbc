"""Record what gliner computes: one text at a time on the CPU; logits in float32 and in bfloat16, and entities.

Runs in the library's environment only. One text at a time, so that padding plays no part: what a batch changes is for the
parity check to find in the engine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import gliner
import numpy as np
import tokenizers
import torch
import transformers
from safetensors import safe_open

from encoder_plugins.artifact.reference import Array, Case, Recording
from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import stanza_words
from encoder_plugins.families.gliner.cases import BUILT_IN, answered, different
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER
from encoder_plugins.families.gliner.parameters import choices
from encoder_plugins.parameters import Value

CONFIG = "gliner_config.json"
WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
_SPLITTER = "words_splitter_type"
# the logits of spans that words propose
SPANS = "span_logits"
_SPANS_AT_ONCE = 16_384
# bytes of weights up to which one thread records within a minute or two
_SMALL = 1 << 30


class GlinerRecorder:
    """The recorder of GLiNER's models with one encoder, whichever it is: those that score spans, and those that score words."""

    def __init__(self, parameters: Mapping[str, Value] = MappingProxyType({})) -> None:
        self._chosen = choices(parameters)

    def configured(self, parameters: Mapping[str, Value]) -> GlinerRecorder:
        """Return the recorder that loads a copy of the configuration with the user's parameters."""
        return GlinerRecorder(parameters)

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint as its users do, and compute logits and entities of every case.

        Returns:
            For each case ``logits`` and ``logits_bfloat16``: `[words, width, labels]`, of spans beyond the last word too, or, of a
            model that scores words, `[words, labels, 3]`: start, end and inside. Where those only propose spans, ``span_logits`` and
            ``span_logits_bfloat16`` are those of all spans, `[words, width, labels]`, proposed or not; 0 beyond the last word. A
            case whose scores are to be compared comes twice; see ``cases``.
        """
        if trust_remote_code:
            raise Unsupported("gliner runs no code of a checkpoint")
        languages = self._chosen.languages
        models, others = stanza_words.separate(auxiliary, languages)
        with _calm(checkpoint), offline(checkpoint, others, self._chosen.changes) as (folder, changed):
            library = load(folder)
            if languages:
                library.data_processor.words_splitter.splitter = stanza_splitter(
                    models, languages, (library.config.ent_token, library.config.sep_token)
                )
            width = None if by_word(library) else library.config.max_width
            exact = [computed for case in cases if (computed := _computed(library, case)) is not None]
            library.model.to(torch.bfloat16)
            rounded = [logits(library, case)[1] for case, *_ in exact]
        found: list[Case] = []
        outputs: dict[str, dict[str, Array]] = {}
        for (case, words, values, entities), values_bfloat16 in zip(exact, rounded, strict=True):
            both = {**values, **{f"{name}_bfloat16": array for name, array in values_bfloat16.items()}}
            for one in answered(case, width=width, words=words, entities=entities):
                found.append(one)
                outputs[one["id"]] = {
                    name: array[:, : one["width"]] if name.startswith(SPANS) else array for name, array in both.items()
                }
        return Recording(
            cases=found,
            outputs=outputs,
            about={
                **(_stanza_versions() if languages else {}),
                "library": f"gliner {gliner.__version__}",
                "transformers": transformers.__version__,
                "tokenizers": tokenizers.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            changed=changed,
        )


RECORDER = GlinerRecorder()


@contextmanager
def offline(
    checkpoint: Path, auxiliary: Mapping[str, Path], changes: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[Path, dict[str, dict[str, str]]]]:
    """Give a folder that the library can load without network, and what is changed in it.

    ``changes`` are fields of gliner_config.json that the user's parameters give another value.

    The oldest checkpoints leave tokenizer and encoder configuration in another repository, and name it in ``model_name``. For
    these, that one field names the auxiliary folder, in a copy of gliner_config.json beside links to the other files.
    """
    config = json.loads((checkpoint / CONFIG).read_text(encoding="utf-8"))
    read = {name: value for name, value in changes.items() if config.get(name) != value}
    shown = dict(read)
    if {**config, **changes}.get(_SPLITTER) == stanza_words.SPLITTER:
        # the library would download models while it loads; it gets its splitter with the prepared ones behind that
        read[_SPLITTER] = "whitespace"
    names = list(auxiliary)
    for field, needed in _named(checkpoint, config).items():
        # a single repository can only be the one of an encoder that has no other
        alone = len(names) == 1 and config.get("labels_encoder") is None
        if needed not in names and not alone:
            raise SourceFileNotFound(
                f"the checkpoint names the repository {needed}, which is not among the auxiliary ones"
            )
        chosen = needed if needed in names else names[0]
        read[field] = str(auxiliary[chosen])
        # the folder is another one each time; its number among the auxiliary repositories is not
        shown[field] = f"auxiliary/{names.index(chosen)}"
    if not read:
        yield checkpoint, {}
        return
    with tempfile.TemporaryDirectory(prefix="encoder-gliner-") as temporary:
        folder = Path(temporary)
        for path in checkpoint.iterdir():
            if path.name != CONFIG:
                os.symlink(path.resolve(), folder / path.name)
        (folder / CONFIG).write_text(json.dumps({**config, **read}), encoding="utf-8")
        yield folder, {CONFIG: shown} if shown else {}


def _named(checkpoint: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the repositories that a checkpoint leaves something in, by the field that names them."""
    found: dict[str, str] = {}
    if config.get("encoder_config") is None or not (checkpoint / "tokenizer_config.json").is_file():
        found["model_name"] = config.get("model_name", "microsoft/deberta-v3-small")
    labels = config.get("labels_encoder")
    tokenizer = checkpoint / LABELS_TOKENIZER / "tokenizer_config.json"
    if labels is not None and (config.get("labels_encoder_config") is None or not tokenizer.is_file()):
        found["labels_encoder"] = labels
    return found


def load(folder: Path) -> Any:
    """Load a checkpoint in float32.

    Raises:
        Unsupported: The library cannot load it, or would compute with weights that the checkpoint does not have.
    """
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    # which implementation of attention is used is a matter of speed, and a published one may need a GPU
    names = ("_attn_implementation", "attn_implementation")
    named = any(part.get(name) is not None for part in (config, config.get("encoder_config") or {}) for name in names)
    try:
        library = gliner.GLiNER.from_pretrained(
            str(folder),
            local_files_only=True,
            dtype=torch.float32,
            map_location="cpu",
            _attn_implementation="eager" if named else None,
        ).eval()
    except Exception as error:
        # libraries raise anything for files that they cannot make a model of; none of it would pass a second time
        raise Unsupported(f"gliner cannot load it: {type(error).__name__}: {error}"[:500]) from error
    if drawn := drawn_at_random(library, stored_names(folder)):
        raise Unsupported(f"{WEIGHTS} lacks {drawn[0]}: gliner would compute with random numbers in its place")
    return library


def stanza_splitter(models: Mapping[str, Path], languages: Sequence[str], markers: Sequence[str]) -> Any:
    """Return the library's splitter with the prepared tokenizers, of which it downloads no others.

    Args:
        models: The folder of each language's auxiliary repository, by stanza's code.
        languages: The languages, as langdetect calls them.
        markers: What no word may spell; see ``stanza_words``.

    Raises:
        Unsupported: stanza cannot load one.
    """
    import stanza
    from gliner.data_processing.tokenizer import StanzaWordsSplitter

    splitter = StanzaWordsSplitter(default_lang=stanza_words.fallback(languages), download_on_missing=False)
    with tempfile.TemporaryDirectory(prefix="encoder-stanza-") as temporary:
        folder = Path(temporary)
        taken, about = stanza_words.resources(models)
        for path, file in taken.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            os.symlink(file.resolve(), folder / path)
        (folder / stanza_words.RESOURCES).write_text(about, encoding="utf-8")
        splitter._stanza = SimpleNamespace(Pipeline=partial(stanza.Pipeline, dir=str(folder)))
        splitter._pipelines.clear()
        for language in languages:
            if (pipeline := splitter._ensure_pipeline(language)) is None:
                raise Unsupported(f"stanza cannot load the tokenizer of {language}")
            splitter._pipelines[language] = stanza_words.LocatedPipeline(pipeline, markers)
    return splitter


def _stanza_versions() -> dict[str, str]:
    """Return the versions of what splits words, for the reference's description."""
    return {name: importlib.metadata.version(name) for name in ("stanza", "langdetect")}


def stored_names(folder: Path) -> set[str]:
    """Return the names of a checkpoint's tensors, those that safetensors keeps as aliases among them."""
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, framework="numpy") as tensors:
            return {*tensors.keys(), *(tensors.metadata() or {})}
    return set(torch.load(folder / PICKLED, map_location="cpu", weights_only=True, mmap=True))


def drawn_at_random(library: Any, stored: set[str]) -> list[str]:
    """Return the parameters for which a checkpoint has no tensor under any of their names: the library draws them."""
    names: dict[int, list[str]] = {}
    for name, tensor in library.model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return [same[0] for same in names.values() if not stored.intersection(same)]


def _computed(library: Any, case: Case) -> tuple[Case, list[list[int]], dict[str, Array], list[dict[str, Any]]] | None:
    """Return a case as it can be sent, its words, its logits and its entities; None for a built-in one that cannot be sent.

    Raises:
        Unsupported: The library cannot compute them.
    """
    try:
        read, count = _read(library, case)
        if read == 0 < count and case["id"] in BUILT_IN:
            # the labels leave the tokenizer no room for the text, and a server refuses them
            return None
        if read < count:
            # a server refuses the text otherwise
            case = {**case, "overflow": "truncate"}
        words, values = logits(library, case)
        end = words[-1][1] if words else 0
        # it finds some in the words that are cut off, too
        return case, words, values, [entity for entity in predict(library, case) if entity["end"] <= end]
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        prepared = library.prepare_batch([case["text"]], case["labels"])
        tokens = library.collate_batch(prepared["input_x"], prepared["entity_types"])["input_ids"].shape[1]
        positions = getattr(library.config.encoder_config, "max_position_embeddings", None)
        reason = f"{type(error).__name__}: {error}"
        if positions is not None and tokens > positions:
            reason = f"it has {tokens} tokens, and encoder_config.max_position_embeddings is {positions}"
        raise Unsupported(f"gliner cannot compute the case {case['id']}: {reason}"[:500]) from error


def _read(library: Any, case: Case) -> tuple[int, int]:
    """Return how many words of the text of a case the library reads, and how many it has."""
    prepared = library.prepare_batch([case["text"]], case["labels"])
    if not prepared["valid_texts"]:
        return 0, 0
    batch = library.collate_batch(prepared["input_x"], prepared["entity_types"])
    return _read_words(library, prepared, batch), len(prepared["start_token_map"][0])


def _read_words(library: Any, prepared: Mapping[str, Any], batch: Mapping[str, Any]) -> int:
    """Return how many words of its only text the library reads.

    It numbers them by the tokens that it sees, so that numbers are missing where the tokenizer cuts the text off, and where words have no
    tokens. The latter are read.
    """
    words, seen = len(batch["tokens"][0]), int(batch["words_mask"].max())
    return seen if seen < words and _cut(library, prepared, batch) else words


def _cut(library: Any, prepared: Mapping[str, Any], batch: Mapping[str, Any]) -> bool:
    """Return whether the library's tokenizer cuts the only text of a batch off."""
    tokenizer, length = library.data_processor.transformer_tokenizer, batch["input_ids"].shape[1]
    limit = tokenizer.model_max_length
    if length < limit:
        return False
    tokenizer.model_max_length = limit + 1
    try:
        again = library.collate_batch(prepared["input_x"], prepared["entity_types"])
    finally:
        tokenizer.model_max_length = limit
    return bool(again["input_ids"].shape[1] > length)


def logits(library: Any, case: Case) -> tuple[list[list[int]], dict[str, Array]]:
    """Return what the library's model computes for the text of one case.

    Returns:
        Start and end of each word that it reads, and the logits as ``GlinerRecorder.record`` returns them, of spans of any width. Where a
        request has words cut off, those that the tokenizer cuts off are none of them: the library scores them as rows of zeros.
    """
    text, labels = case["text"], case["labels"]
    prepared = library.prepare_batch([text], labels)
    proposes = by_word(library) and bool(getattr(library.config, "represent_spans", False))
    if not prepared["valid_texts"]:
        count = len(different(labels))
        shape = (0, count, 3) if by_word(library) else (0, library.config.max_width, count)
        nothing = {SPANS: np.zeros((0, 1, count), np.float32)} if proposes else {}
        return [], {"logits": np.zeros(shape, np.float32), **nothing}
    batch = library.collate_batch(prepared["input_x"], prepared["entity_types"])
    output = library.run_batch(batch)
    read = _read_words(library, prepared, batch) if case["overflow"] == "truncate" else len(batch["tokens"][0])
    values = {"logits": np.ascontiguousarray(output.logits[0].float().numpy()[:read])}
    if proposes:
        values[SPANS] = span_logits(library, output.words_embedding[:, :read], output.prompts_embedding)
    bounds = zip(prepared["start_token_map"][0][:read], prepared["end_token_map"][0][:read], strict=True)
    return [[int(start), int(end)] for start, end in bounds], values


@torch.inference_mode()
def span_logits(library: Any, words: torch.Tensor, labels: torch.Tensor) -> Array:
    """Return the logits of all spans of a text, `[words, width, labels]`, by the layers that the library has for proposed ones.

    Args:
        library: A model whose words propose spans.
        words: `[1, words, size]`, as the model's output has them.
        labels: `[1, labels, size]`, likewise.
    """
    count = words.shape[1]
    found = np.zeros((count, count, labels.shape[1]), np.float32)
    first, further = (
        places.astype(np.int64) for places in np.nonzero(np.add.outer(range(count), range(count)) < count)
    )
    for begin in range(0, len(first), _SPANS_AT_ONCE):
        part = slice(begin, begin + _SPANS_AT_ONCE)
        places = torch.from_numpy(np.stack([first[part], first[part] + further[part]], axis=1))
        vectors = library.model.span_rep_layer(words, places[None])
        # as the model multiplies them
        scores = torch.einsum("BND,BCD->BNC", vectors, labels)
        found[first[part], further[part]] = scores[0].float().numpy()
    return found


def by_word(library: Any) -> bool:
    """Return whether a model scores words; others score spans."""
    return bool(library.config.span_mode == "token_level")


def predict(library: Any, case: Case) -> list[dict[str, Any]]:
    """Return the library's entities for a case."""
    found: list[dict[str, Any]] = library.predict_entities(
        case["text"],
        case["labels"],
        flat_ner=case["flat_ner"],
        threshold=case["threshold"],
        multi_label=case["multi_label"],
    )
    return found


@contextmanager
def _calm(checkpoint: Path) -> Iterator[None]:
    """Compute small checkpoints in one thread, as threads that wait by spinning cost more, and without warnings.

    The library warns of texts that it cuts off, and of embeddings with more rows than the tokenizer has entries.
    """
    before = torch.get_num_threads()
    weights = [path for suffix in ("*.safetensors", "*.bin") for path in checkpoint.rglob(suffix)]
    if sum(path.stat().st_size for path in weights) < _SMALL:
        torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(before)
