"""What the conversions of visual checkpoints share: weights that are compared and linked, a tokenizer, and configuration.

Imports transformers, and no module of the library that published a checkpoint. Whether a result is right is for the
reference to say, which the library computes from the published files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.config import RetrievalConfig, Side
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.families.retrieval.tokens import FILE
from encoder_plugins.prep.checkpoint import link
from encoder_plugins.prep.checkpoint_json import read_object, shown
from encoder_plugins.prep.tensor_file import FLOATS, Shape, read_header

PROJECTION = "custom_text_proj."
INDEX = "model.safetensors.index.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja")


def check_weights(
    folder: Path,
    expected: Mapping[str, Shape],
    name_of: Callable[[str], str],
    *,
    ignored: Iterable[str],
    kind: str,
    floats: Collection[str] = FLOATS,
) -> None:
    """Compare the tensors of all files of a folder with those of a model.

    Args:
        folder: Where the weights are.
        expected: The model's tensors.
        name_of: Returns the model's name of a published one.
        ignored: Names of tensors that may be there, and are not served.
        kind: What the model is, for messages.
        floats: The types of numbers that tensors may have.

    Raises:
        Unsupported: One is missing, unknown, not of floats or of another shape.
    """
    found: dict[str, Shape] = {}
    for path in sorted(folder.glob("*.safetensors")):
        header = read_header(folder, path.name)
        for name, shape in header.shapes.items():
            if header.dtypes[name] not in floats:
                raise Unsupported(
                    f"{path.name}: {name} is {header.dtypes[name]}; supported: {', '.join(sorted(floats))}"
                )
            found[name_of(name)] = shape
    for name in ignored:
        found.pop(name, None)
    if missing := sorted(expected.keys() - found.keys()):
        raise Unsupported(f"the weights have no {missing[0]}, nor {len(missing) - 1} other tensors of a {kind} model")
    if unknown := sorted(found.keys() - expected.keys()):
        raise Unsupported(f"the weights have {unknown[0]}, which no {kind} model has")
    for name, shape in expected.items():
        if found[name] != shape:
            raise Unsupported(f"{name} is {list(found[name])}, and the configuration requires {list(shape)}")


def link_weights(folder: Path, target: Path) -> None:
    """Give an artifact the published weights."""
    for path in sorted(folder.glob("*.safetensors")):
        link(path, target / path.name)
    if (folder / INDEX).is_file():
        link(folder / INDEX, target / INDEX)


def write_tokenizer(folder: Path, target: Path, of: Any = AutoTokenizer) -> tuple[Any, Tokenizer]:
    """Give an artifact the published tokenizer, which neither pads nor cuts; return it as transformers has it, and bare.

    Args:
        folder: The checkpoint.
        target: The artifact's model folder.
        of: The class that loads it; the automatic one would go to a checkpoint's own code where its configuration names that.

    Raises:
        Unsupported: It cannot be loaded, or is not a fast tokenizer.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = of.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise Unsupported(f"the tokenizer is a {type(tokenizer).__name__}; only fast tokenizers are served")
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    (target / FILE).write_text(own.to_str(pretty=True), encoding="utf-8")
    if (folder / TOKENIZER_CONFIG).is_file():
        write_json(target / TOKENIZER_CONFIG, without_code(read_object(folder, TOKENIZER_CONFIG)))
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            link(folder / name, target / name)
    return tokenizer, own


def check_vocabulary(own: Tokenizer, rows: object) -> None:
    """Refuse a tokenizer that has ids beyond the rows of the model's vocabulary."""
    largest = max(own.get_vocab().values())
    if not isinstance(rows, int) or largest >= rows:
        raise Unsupported(f"the tokenizer has ids up to {largest}, and text_config.vocab_size is {shown(rows)}")


def special_tokens(tokenizer: Any) -> set[int]:
    """Return the ids of a tokenizer's special tokens, which no text of a user may contain."""
    return {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}


def rows_config(*, width: int, dimensions: int, positions: int, query: str = "") -> RetrievalConfig:
    """Return what decides rows: a projection with bias, and rows of length 1.

    Args:
        width: Numbers of a row before the projection.
        dimensions: Numbers of a row.
        positions: Tokens of the longest prompt that the model knows.
        query: What is put before each query.
    """
    # a longer text is refused, not cut: one token more than the model has positions is enough to see it
    most = positions + 1
    return RetrievalConfig(
        query=Side(prompt=query, most_tokens=most, skips=False),
        document=Side(prompt="", most_tokens=most, skips=False),
        expansion=None,
        skiplist=(),
        projection=(DenseSpec(inputs=width, outputs=dimensions, bias=True, activation="Identity"),),
        normalize=True,
        similarity="maxsim",
    )


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json without what sends its loader to code, and without the dtype of its weights."""
    return {name: value for name, value in config.items() if name not in ("auto_map", "dtype", "torch_dtype")}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object as JSON, its fields sorted."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
