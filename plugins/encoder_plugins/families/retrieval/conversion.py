"""Convert a retriever's checkpoint into the model folder of an artifact.

Imports torch and transformers, and no module of the library that published it. Whether the result is right is for the
reference to say, which the library computes from the published files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from transformers import AutoTokenizer

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.config import (
    KEY,
    PROJECTION,
    Expansion,
    InputType,
    RetrievalConfig,
    Side,
)
from encoder_plugins.families.retrieval.encoder_spec import EncoderSpec
from encoder_plugins.families.retrieval.library_format import LIBRARY
from encoder_plugins.families.retrieval.lower_case import lower_case
from encoder_plugins.families.retrieval.settings import (
    CONFIG,
    STANFORD_PROJECTION,
    TRANSFORMER,
    WEIGHTS,
    Settings,
)
from encoder_plugins.families.retrieval.token_types import check_token_types
from encoder_plugins.prep.checkpoint import link
from encoder_plugins.prep.checkpoint_files import MODULES
from encoder_plugins.prep.checkpoint_json import for_engine, read_object, shown
from encoder_plugins.prep.tensor_file import FLOATS, read_header

TOKENIZER = "tokenizer.json"
# the Dense modules' weights in an artifact
PROJECTION_WEIGHTS = "projection.safetensors"
# what vLLM's own routes read beside tokenizer.json
TOKENIZER_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)


def convert(spec: EncoderSpec, encoder: Any, settings: Settings, folder: Path, target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        spec: The plugin's encoder.
        encoder: The settings of the checkpoint's encoder.
        settings: Those of everything else.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    config = read_object(folder, CONFIG)
    with _quiet():
        tokenizer = _tokenizer(folder)
        check_token_types(tokenizer, getattr(encoder, "token_types", 0))
        if settings.lower_case:
            # before the prefixes, of which the library registers those that it then no longer finds in a text
            lower_case(tokenizer.backend_tokenizer)
        register_prefixes(tokenizer, settings)
        served = resolve(settings, tokenizer, encoder)
        _write_tokenizer(tokenizer, folder, target)
    _write_encoder(spec, config, folder, target)
    _write_projection(served, folder, target)
    kept = {name: value for name, value in config.items() if name not in ("auto_map", "dtype", "torch_dtype")}
    written = {**for_engine(kept), "architectures": [spec.architecture], KEY: served.to_dict()}
    (target / CONFIG).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> Any:
    """Return a checkpoint's tokenizer as transformers has it.

    Raises:
        Unsupported: It cannot be loaded, or is not a fast one.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise Unsupported(f"the tokenizer is a {type(tokenizer).__name__}; only fast tokenizers are served")
    return tokenizer


def _tokenizer(folder: Path) -> Any:
    tokenizer = load_tokenizer(folder)
    for name, value, accepted in (
        ("split_special_tokens", tokenizer.split_special_tokens, False),
        ("truncation_side", tokenizer.truncation_side, "right"),
        ("padding_side", tokenizer.padding_side, "right"),
    ):
        if value != accepted:
            raise Unsupported(f"tokenizer_config.json: {name} is {shown(value)}; supported: {shown(accepted)}")
    return tokenizer


def register_prefixes(tokenizer: Any, settings: Settings) -> None:
    """Make the tokenizer emit each prefix as one token, as the library does for prefixes that its vocabulary has."""
    added, vocabulary = set(tokenizer.added_tokens_encoder), tokenizer.get_vocab()
    missing = []
    for whole in settings.prefixes:
        candidates = [whole, *whole.split(None, 1)[:1]] if whole.split() else []
        known = next((prefix for prefix in candidates if prefix in added or prefix in vocabulary), None)
        if known is not None and tokenizer.tokenize(known) != [known]:
            missing.append(AddedToken(known, normalized=False, special=True))
    if missing:
        tokenizer.add_special_tokens({"additional_special_tokens": missing})


def resolve(settings: Settings, tokenizer: Any, encoder: Any) -> RetrievalConfig:
    """Return the settings with lengths and ids that tokenizer and encoder agree on.

    Raises:
        Unsupported: The tokenizer lacks a token, or has ids that the encoder has no row for.
    """
    if (largest := max(tokenizer.get_vocab().values())) >= encoder.vocabulary:
        raise Unsupported(f"the tokenizer has ids up to {largest}, and the embedding only {encoder.vocabulary} rows")
    limit = min(settings.tokenizer_limit or tokenizer.model_max_length, encoder.max_tokens)

    def side(kind: InputType, most: int | None) -> Side:
        return Side(
            prompt=settings.prompts[kind],
            most_tokens=limit if most is None else most,
            skips=kind in settings.skiplist_tasks,
            prefix_length=len(settings.markers[kind]),
        )

    most = settings.lengths["query"]
    expansion = settings.expansion
    if expansion is not None and expansion.fixed:
        most = expansion.length
    served = RetrievalConfig(
        query=side("query", most),
        document=side("document", settings.lengths["document"]),
        expansion=None
        if expansion is None
        else Expansion(
            length=expansion.length, token_id=_expansion_token(expansion.token, tokenizer), attend=expansion.attend
        ),
        skiplist=_skiplist(settings.skiplist_words, tokenizer),
        projection=settings.projection,
        normalize=settings.normalize,
        similarity=settings.similarity,
        strips=settings.strips,
        prompts=settings.named,
    )
    # RoBERTa counts positions from behind the padding's id, and without the padding; the engine counts all tokens
    if served.expansion is not None and served.expansion.token_id == getattr(encoder, "first_position", 0) - 1:
        token = tokenizer.convert_ids_to_tokens(served.expansion.token_id)
        raise Unsupported(f"{TRANSFORMER}: query_expansion: token is {token}, which has no position in this encoder")
    if expansion is not None and served.query.most_tokens < expansion.length:
        raise Unsupported(
            f"queries are filled up to {expansion.length} tokens, and the tokenizer cuts them at {served.query.most_tokens}"
        )
    return served


def _expansion_token(token: str | None, tokenizer: Any) -> int:
    if token is None:
        found = tokenizer.eos_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
    else:
        found = tokenizer.convert_tokens_to_ids(token)
        found = None if found == tokenizer.unk_token_id and token != tokenizer.unk_token else found
    if found is None:
        raise Unsupported(f"{LIBRARY}: queries are expanded by {token or 'the mask token'}, which the tokenizer lacks")
    return int(found)


def _skiplist(words: tuple[str, ...], tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of a skiplist; a word that is not one token counts as none, as in the library."""
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in words}
    unknown = tokenizer.unk_token_id
    found = {
        int(number)
        for word, number in ids.items()
        if number is not None and (number != unknown or unknown is None or word == tokenizer.unk_token)
    }
    return tuple(sorted(found))


def _write_tokenizer(tokenizer: Any, folder: Path, target: Path) -> None:
    """Write the tokenizer that prompts are made with: what the library's does with a text, but for its length."""
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    (target / TOKENIZER).write_text(own.to_str(pretty=True), encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            link(folder / name, target / name)


def _write_encoder(spec: EncoderSpec, config: Mapping[str, Any], folder: Path, target: Path) -> None:
    """Put the encoder's weights in place: the same file where it holds just what the engine loads."""
    layout_, prefix = spec.layout(config), spec.prefix(config)
    header = read_header(folder, WEIGHTS, missing="the encoder's weights must be in this file")
    below = any(name.startswith(prefix) for name in header.shapes) and prefix
    names = {name: published_name((below or "") + name, header.shapes) for name in layout_.shapes}
    for name, shape in layout_.shapes.items():
        found, dtype = header.shapes.get(names[name]), header.dtypes.get(names[name])
        if found != tuple(shape):
            raise Unsupported(
                f"{WEIGHTS}: {names[name]} is {found or 'missing'}, and the configuration requires {list(shape)}"
            )
        if dtype not in FLOATS:
            raise Unsupported(f"{WEIGHTS}: {names[name]} is {dtype}; supported: {', '.join(sorted(FLOATS))}")
    if header.shapes.keys() == layout_.shapes.keys():
        link(folder / WEIGHTS, target / WEIGHTS)
        return
    stored = load_file(folder / WEIGHTS)
    _save({name: stored[given] for name, given in names.items()}, target / WEIGHTS)


def published_name(name: str, shapes: Mapping[str, object]) -> str:
    """Return a tensor's name in the file: BERT's norms may have their first names, which transformers 5.3 writes again."""
    first = name.replace(".LayerNorm.weight", ".LayerNorm.gamma").replace(".LayerNorm.bias", ".LayerNorm.beta")
    return first if name not in shapes and first in shapes else name


def _write_projection(served: RetrievalConfig, folder: Path, target: Path) -> None:
    """Write the tensors of all Dense modules into one file."""
    if not (folder / MODULES).is_file():
        # Stanford's format
        with safe_open(folder / WEIGHTS, framework="pt") as stored:
            projection = stored.get_tensor(STANFORD_PROJECTION)
        _save({f"{PROJECTION}0.linear.weight": projection}, target / PROJECTION_WEIGHTS)
        return
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    paths = [module["path"] for module in modules if module["type"].endswith(".Dense")]
    found: dict[str, Tensor] = {}
    for index, (spec, path) in enumerate(zip(served.projection, paths, strict=True)):
        stored = load_file(folder / path / WEIGHTS)
        found |= {f"{PROJECTION}{index}.{name}": stored[name] for name in spec.shapes()}
    _save(found, target / PROJECTION_WEIGHTS)


def _save(named: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: value.contiguous() for name, value in named.items()}, path, metadata={"format": "pt"})
    # safetensors writes for its own user alone, and the engine may be another
    path.chmod(0o644)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of the libraries about what is checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
