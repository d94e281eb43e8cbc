"""What a published checkpoint of one vector per token says about prompts, lengths, expansion, skiplist and projection.

Read is what ``MultiVectorEncoder`` of sentence-transformers 6.2 reads: its own format; PyLate's, which keeps lengths, prefixes
and skiplist in ``config_sentence_transformers.json`` and lists neither mask nor norm among its modules; and Stanford's, which has
no modules at all: the projection lies beside the encoder's weights, and everything else in ``artifact.metadata``. Whatever
decides the result and is not done here is refused by file and field. Standard library and safetensors only.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.config import InputType, Similarity
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.families.retrieval.library_format import LIBRARY, is_pylate, read_library
from encoder_plugins.prep.checkpoint_files import MODULES
from encoder_plugins.prep.checkpoint_json import integer, read_json, read_object, refusal, shown
from encoder_plugins.prep.tensor_file import read_header

CONFIG = "config.json"
TRANSFORMER = "sentence_bert_config.json"
# where the library looks for them, in its order
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
WEIGHTS = "model.safetensors"

# Stanford's format: its architecture, its settings, and the projection among the encoder's weights
STANFORD, METADATA, STANFORD_PROJECTION = "HF_ColBERT", "artifact.metadata", "linear.weight"
# the markers of queries and documents where the settings do not say, and the rows' width
STANFORD_MARKERS, STANFORD_WIDTH = ("[unused0]", "[unused1]"), 128

# module types by the last part of their names, and what those names may begin with
KINDS = frozenset({"Transformer", "Dense", "MultiVectorMask", "Normalize"})
PACKAGES = ("sentence_transformers.", "pylate.models.Dense.")

# fields by which the library knows what PyLate saved
MARKERS = frozenset(
    {
        "query_length",
        "document_length",
        "query_expansion",
        "do_query_expansion",
        "attend_to_expansion_tokens",
        "attend_to_mask_tokens",
        "query_prefix",
        "document_prefix",
        "skiplist_words",
    }
)
# what PyLate and Stanford's ColBERT take where a checkpoint leaves it open
QUERY_LENGTH = 32
# a text has its first and last special token, a prefix, and something of its own
FEWEST_TOKENS = 4
# what Dense modules are applied to
TOKENS = "token_embeddings"

# fields of the Transformer module with arguments of the library's own loading
ARGUMENTS = ("model_args", "model_kwargs", "config_args", "config_kwargs", "tokenizer_args", "processor_kwargs")
# fields of the Transformer module that change the result, with the values that change nothing
TRANSFORMER_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": (TOKENS,),
    "processing_kwargs": ({},),
    **dict.fromkeys(ARGUMENTS, ({},)),
    "tokenizer_name_or_path": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionSettings:
    """How queries are expanded.

    Attributes:
        length: Tokens that a query has at least.
        fixed: Whether longer queries are cut to ``length``.
        attend: Whether the query's tokens attend to the added ones.
        token: The token that is added; None for the tokenizer's mask token.
    """

    length: int
    fixed: bool
    attend: bool
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A published checkpoint.

    Attributes:
        prompts: What is put before each text of a kind.
        markers: What of it precedes a text whichever prompt is named; empty but for PyLate's format.
        named: The checkpoint's prompts by name, without those markers.
        prefixes: Prompts that stand for one token each, which the tokenizer has to emit as one.
        lengths: Tokens kept of a text of each kind; None leaves that to the tokenizer.
        tokenizer_limit: What the Transformer module sets the tokenizer's own limit to; None for nothing.
        strips: Whether white space around a text is left out, as PyLate does it.
        lower_case: Whether text is lower-cased before anything else.
        expansion: How queries are expanded; None where they are not.
        skiplist_words: Tokens without a row, as words.
        skiplist_tasks: The kinds of texts for which that holds.
        projection: The modules between encoder and rows.
        normalize: Whether rows are scaled to length 1.
        similarity: What a score is.
    """

    prompts: Mapping[InputType, str]
    markers: Mapping[InputType, str]
    named: Mapping[str, str]
    prefixes: tuple[str, ...]
    lengths: Mapping[InputType, int | None]
    tokenizer_limit: int | None
    strips: bool
    lower_case: bool
    expansion: ExpansionSettings | None
    skiplist_words: tuple[str, ...]
    skiplist_tasks: frozenset[str]
    projection: tuple[DenseSpec, ...]
    normalize: bool
    similarity: Similarity


def read(folder: Path, width: int) -> Settings:
    """Read and check a published checkpoint, but for its encoder.

    Args:
        folder: The checkpoint; weights of the root may be missing.
        width: Width of the encoder's rows.

    Raises:
        Unsupported: It needs something that is not served; the message names file and field.
        SourceFileNotFound: A file of the format is missing.
    """
    if not (folder / MODULES).is_file() and is_stanford(read_object(folder, CONFIG)):
        return _stanford(folder, width)
    library = read_library(folder)
    pylate = is_pylate(library)
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    tail = ["MultiVectorMask", "Normalize"]
    order = ["Transformer", *["Dense"] * kinds.count("Dense")]
    complete = [*order, *tail]
    accepted = [order] if pylate else [complete, [*order, *tail[::-1]], complete[:-1]]
    if "Dense" not in kinds or kinds not in accepted:
        layout = "Transformer > Dense" if pylate else "Transformer > Dense > MultiVectorMask > Normalize"
        raise Unsupported(f"{MODULES}: {' > '.join(kinds)}; supported: {layout}, with one Dense or several")
    if modules[0][1]:
        raise Unsupported(f"{MODULES}: the Transformer is in {modules[0][1]!r}; it must be in the checkpoint's root")
    projection: list[DenseSpec] = []
    words, tasks, normalize = _skiplist(library), frozenset({"document"}), pylate
    for kind, path in modules[1:]:
        if kind == "Dense":
            before = projection[-1].outputs if projection else width
            projection.append(dense.read(folder, path, before, features=TOKENS))
        elif kind == "MultiVectorMask":
            words, tasks = _mask(folder, path)
        else:
            _normalize(folder, path)
            normalize = True
    transformer, files = _transformer(folder, library)
    prompts = _prompts(library)
    # PyLate inserts its prefix whatever the prompt; to sentence-transformers it is the beginning of one prompt
    markers = {kind: (library.get(f"{kind}_prefix") or "") if pylate else "" for kind in prompts}
    return Settings(
        prompts=prompts,
        markers=markers,
        named={
            **_named(library),
            **{kind: prompt.removeprefix(markers[kind]) for kind, prompt in prompts.items()},
        },
        prefixes=tuple(
            _text(LIBRARY, library, name) for name in ("query_prefix", "document_prefix") if library.get(name)
        ),
        lengths={
            "query": _length(transformer, files, "query_length"),
            "document": _length(transformer, files, "document_length"),
        },
        tokenizer_limit=_length(transformer, files, "max_seq_length"),
        strips=pylate,
        lower_case=bool(transformer.get("do_lower_case", False)),
        expansion=_expansion(transformer, files),
        skiplist_words=words,
        skiplist_tasks=tasks,
        projection=tuple(projection),
        normalize=normalize,
        similarity="meanmaxsim" if library.get("similarity_fn_name") == "meanmaxsim" else "maxsim",
    )


def is_stanford(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a config.json is that of a checkpoint in Stanford's format."""
    named = config.get("architectures")
    return isinstance(named, list) and STANFORD in named


def _stanford(folder: Path, width: int) -> Settings:
    """Read a checkpoint in Stanford's format; raises as ``read`` does."""
    if (folder / LIBRARY).is_file():
        raise Unsupported(f"{LIBRARY}: the checkpoint is in Stanford's format, and the file is of another one")
    metadata = read_object(folder, METADATA) if (folder / METADATA).is_file() else {}
    markers = [
        _text(METADATA, metadata, name) or default
        for name, default in zip(("query_token_id", "doc_token_id"), STANFORD_MARKERS, strict=True)
    ]
    query, document = (f"{marker} " for marker in markers)
    for name in ("attend_to_mask_tokens", "mask_punctuation"):
        if metadata.get(name) not in (True, False, None):
            raise refusal(METADATA, name, metadata[name], [True, False])

    def length(name: str) -> int | None:
        return None if metadata.get(name) is None else integer(METADATA, metadata, name, least=FEWEST_TOKENS)

    return Settings(
        prompts={"query": query, "document": document},
        markers={"query": "", "document": ""},
        named={"query": query, "document": document},
        prefixes=(query, document),
        lengths={"query": None, "document": length("doc_maxlen")},
        tokenizer_limit=None,
        strips=False,
        lower_case=False,
        expansion=ExpansionSettings(
            length=length("query_maxlen") or QUERY_LENGTH,
            fixed=True,
            attend=bool(metadata.get("attend_to_mask_tokens")),
            token=None,
        ),
        skiplist_words=tuple(string.punctuation) if metadata.get("mask_punctuation", True) else (),
        skiplist_tasks=frozenset({"document"}),
        projection=(_stanford_projection(folder, width, metadata),),
        normalize=True,
        similarity="maxsim",
    )


def _stanford_projection(folder: Path, width: int, metadata: dict[str, Any]) -> DenseSpec:
    """Return the projection; before the weights are there, what the settings say of its width."""
    outputs = STANFORD_WIDTH if metadata.get("dim") is None else integer(METADATA, metadata, "dim")
    if (folder / WEIGHTS).is_file():
        shape = read_header(folder, WEIGHTS).shapes.get(STANFORD_PROJECTION)
        if shape is None or len(shape) != 2 or shape[1] != width:
            raise Unsupported(
                f"{WEIGHTS}: {STANFORD_PROJECTION} is {shape or 'missing'}; expected is one of [dimensions, {width}]"
            )
        outputs = shape[0]
    return DenseSpec(inputs=width, outputs=outputs, bias=False, activation="Identity")


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module."""
    entries = read_json(folder, MODULES)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Unsupported(f"{MODULES} is not a list of modules")
    found = []
    for entry in entries:
        named, path = str(entry.get("type")), entry.get("path", "")
        kind = named.rpartition(".")[2]
        if not named.startswith((*PACKAGES, "pylate.")):
            raise RemoteCodeRefused(
                f"{MODULES}: {named} is code of the repository; only the library's modules are served"
            )
        if not named.startswith(PACKAGES) or kind not in KINDS:
            raise Unsupported(f"{MODULES}: the module {named} is not supported")
        if not isinstance(path, str):
            raise Unsupported(f"{MODULES}: path is {shown(path)}; expected a folder's name")
        found.append((kind, path))
    return found


def _skiplist(library: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of PyLate's skiplist: punctuation where a checkpoint does not say."""
    words = library.get("skiplist_words")
    return tuple(string.punctuation) if words is None else _words(LIBRARY, words)


def _words(where: str, words: object) -> tuple[str, ...]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Unsupported(f"{where}: skiplist_words is {shown(words)}; expected a list of words")
    return tuple(words)


def _mask(folder: Path, path: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return skiplist and its tasks of a MultiVectorMask module."""
    name = f"{path}/config.json"
    config = read_object(folder, name)
    if config.get("keep_only_token_ids"):
        raise refusal(name, "keep_only_token_ids", config["keep_only_token_ids"], [None])
    tasks = config.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(tasks, list) or not {"query", "document"}.issuperset(map(str, tasks)):
        raise refusal(name, "skiplist_tasks", tasks, [["document"], ["query", "document"]])
    return _words(name, config.get("skiplist_words") or []), frozenset(tasks)


def _normalize(folder: Path, path: str) -> None:
    name = f"{path}/config.json"
    config = read_object(folder, name) if (folder / name).is_file() else {}
    if config.get("module_input_name") != TOKENS or config.get("module_output_name") not in (None, TOKENS):
        raise refusal(name, "module_input_name", config.get("module_input_name"), [TOKENS])


def _transformer(folder: Path, library: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of the Transformer module, and the file of each; PyLate's stand behind those that the module has itself."""
    file, config = transformer_config(folder)
    for field, neutral in TRANSFORMER_NEUTRAL.items():
        if (value := without_trust(field, config.get(field))) is not None and value not in neutral:
            raise Unsupported(f"{file}: {field} is {shown(value)}, which is not supported")
    modalities = config.get("modality_config")
    if modalities is not None and (not isinstance(modalities, dict) or set(modalities) != {"text"}):
        raise Unsupported(f"{file}: modality_config has {shown(modalities)}; only text is served")
    pylate = _pylate_fields(library)
    return {**pylate, **config}, {**dict.fromkeys(pylate, LIBRARY), **dict.fromkeys(config, file)}


def transformer_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the file with the fields of the Transformer module, and the fields; the library reads on behind a file without any."""
    present = ((name, read_object(folder, name)) for name in TRANSFORMER_CONFIGS if (folder / name).is_file())
    return next(((name, fields) for name, fields in present if fields), (TRANSFORMER, {}))


def without_trust(field: str, value: object) -> object:
    """Return the value of a field of the Transformer module without what the library takes from its caller alone."""
    if field not in ARGUMENTS or not isinstance(value, dict):
        return value
    return {name: argument for name, argument in value.items() if name != "trust_remote_code"}


def _pylate_fields(library: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the Transformer module that PyLate keeps elsewhere, as the library translates them."""
    if not MARKERS & library.keys():
        return {}
    found = {name: library[name] for name in ("query_length", "document_length") if library.get(name) is not None}
    if "query_expansion" in library:
        return {**found, "query_expansion": library["query_expansion"]}
    if library.get("do_query_expansion") is False:
        return found
    attend = library.get("attend_to_expansion_tokens", library.get("attend_to_mask_tokens"))
    # PyLate's query_length is what queries are filled up to
    filled = {"query_length": found.pop("query_length", None) or QUERY_LENGTH}
    length = integer(LIBRARY, filled, "query_length", least=FEWEST_TOKENS)
    return {**found, "query_expansion": {"strategy": "fixed", "attend": bool(attend), "length": length}}


def _length(transformer: dict[str, Any], files: Mapping[str, str], name: str) -> int | None:
    if transformer.get(name) is None:
        return None
    return integer(files[name], transformer, name, least=FEWEST_TOKENS)


def _expansion(transformer: dict[str, Any], files: Mapping[str, str]) -> ExpansionSettings | None:
    values = transformer.get("query_expansion")
    if values is None:
        return None
    where = f"{files['query_expansion']}: query_expansion"
    if not isinstance(values, dict) or values.keys() - {"strategy", "attend", "token", "length"}:
        raise Unsupported(f"{where} is {shown(values)}; it may have strategy, attend, token and length")
    if values.get("strategy") not in ("fixed", "min"):
        raise refusal(where, "strategy", values.get("strategy"), ["fixed", "min"])
    attend, token = values.get("attend", False), values.get("token")
    if not isinstance(attend, bool):
        raise refusal(where, "attend", attend, [True, False])
    if token is not None and not isinstance(token, str):
        raise Unsupported(f"{where}: token is {shown(token)}; expected a token")
    length = integer(where, values, "length", least=FEWEST_TOKENS)
    most = _length(transformer, files, "query_length")
    if most is not None and most < length:
        raise Unsupported(f"{where}: length is {length}, and query_length only {most}")
    return ExpansionSettings(length=length, fixed=values["strategy"] == "fixed", attend=attend, token=token)


def _prompts(library: Mapping[str, Any]) -> dict[InputType, str]:
    """Return what is put before texts of each kind: the prefix, and the checkpoint's prompt behind it."""
    prompts = _named(library)

    def one(kind: InputType) -> str:
        prefix = _text(LIBRARY, library, f"{kind}_prefix")
        return prefix + prompts.get(kind, "").removeprefix(prefix)

    return {"query": one("query"), "document": one("document")}


def _named(library: Mapping[str, Any]) -> dict[str, str]:
    prompts = library.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise Unsupported(f"{LIBRARY}: prompts is {shown(prompts)}; expected texts by name")
    return {name: _text(f"{LIBRARY}: prompts", prompts, name) for name in prompts}


def _text(where: str, values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise Unsupported(f"{where}: {name} is {shown(value)}; expected a text")
    return value or ""


def other_format(paths: set[str]) -> Unsupported | SourceFileNotFound:
    """Return the error for a checkpoint without modules.json that is not in Stanford's format, naming its format where that is known.

    Args:
        paths: Every path that the source has.
    """
    if METADATA in paths:
        return Unsupported(
            f"{CONFIG}: architectures does not name {STANFORD}, though {METADATA} is there: the library would take a projection"
            " of random weights"
        )
    if "gliner_config.json" in paths:
        return Unsupported(
            "gliner_config.json: this is a GLiNER checkpoint; the plugins deberta_gliner, mmbert_gliner and mt5_gliner serve such"
        )
    return SourceFileNotFound(
        f"{MODULES} is missing: the checkpoint is in neither PyLate's nor sentence-transformers' nor Stanford's format"
    )
