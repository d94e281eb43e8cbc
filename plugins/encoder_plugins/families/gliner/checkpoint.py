"""Read gliner_config.json and the encoder's configuration, and refuse by field what would be served differently from the library.

Every field that decides an answer in gliner 0.2.29 is honoured or refused here; others (of training, say) have no effect, as
in the library. Pure but for reading JSON files: neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from encoder_plugins.errors import RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import stanza_words, words
from encoder_plugins.families.gliner.config import Head
from encoder_plugins.families.gliner.parameters import Choices
from encoder_plugins.prep.checkpoint_json import integer, read_object, refusal, shown

CONFIG = "gliner_config.json"
ENCODER_CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS = "model.safetensors"
# the library adds this token, too; nothing reads it
FLERT = "[FLERT]"
# tokenizers that cut nothing say so with a number like this
UNLIMITED = 10**6
_MAX_WORDS = 384
_DEFAULT_WIDTH = 12
DEFAULTS = Choices()
# beyond these, no engine has a step, and the library no memory
_MOST_WORDS = 100_000
_MOST_WIDTH = 1_000

# fields of which a single meaning is served, with the values that have it; a missing field has it, too
_SINGLE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "model_type": (None, "gliner", "gliner_uni_encoder", "gliner_uni_encoder_span", "gliner_uni_encoder_token"),
        "span_mode": ("markerV0", "token_level"),
        "subtoken_pooling": ("first",),
        "fuse_layers": (False, None),
        "post_fusion_schema": ("", None),
        "span_encoder_config": (None,),
        "labels_encoder": (None,),
        "labels_encoder_config": (None,),
        "labels_decoder": (None,),
        "labels_decoder_config": (None,),
        "decoder_config": (None,),
        "relations_layer": (None,),
        "triples_layer": (None,),
        "precomputed_prompts_mode": (False, None),
    }
)

_HINTS: Mapping[str, str] = MappingProxyType(
    {"labels_encoder": "Bi-encoders are served by the plugin deberta_gliner_linker"}
)

SPAN_MODES: Mapping[Head, str] = MappingProxyType({"span": "markerV0", "token": "token_level"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpec:
    """An encoder of ours.

    Attributes:
        model_type: The encoder's model type in transformers.
        settings: The function that reads the encoder's configuration in the engine, as ``"module:Class"``; its ``read``
            raises ValueError for what the encoder does not compute.
        layout: The function that lists the encoder's tensors, as ``"module:function"``.
    """

    model_type: str
    settings: str
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec(BackboneSpec):
    """The encoder of a plugin's checkpoints.

    Attributes:
        plugin: The plugin's name, for messages.
        architecture: The architecture that config.json of the artifact names.
        heads: The heads that the plugin serves.
        fixed: Fields of the encoder's configuration of which only some values are served.
        relative: Whether positions are relative only, so that the served context is ours to choose.
        vllm_attention: Whether the encoder uses vLLM's own attention, which has kernels for some head sizes only.
        changes: Fields that config.json has differently from the encoder's own configuration.
        labels: The encoder of labels, where they have one of their own.
    """

    plugin: str
    architecture: str
    heads: tuple[Head, ...] = ("span",)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    relative: bool
    vllm_attention: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    labels: BackboneSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """gliner_config.json, checked.

    Attributes:
        hidden_size: Width of words, spans and labels.
        max_width: Words of the longest span.
        max_words: Words taken of a text.
        class_token: Stands before each label.
        class_token_id: Its id in the tokenizer; None where the library derives it.
        separator_token: Stands between labels and words.
        embed_class_token: Whether a label is read at its class token.
        lstm_layers: Layers of the LSTM over words.
        head: What scores: spans, or words.
        represent_spans: Whether words only propose spans, which are then scored by vectors of their own.
        rows: Rows that the embedding must have; None where the tokenizer decides.
        encoder: The encoder's configuration; None where it is in another repository.
        base: The repository that the encoder came from.
        languages: Those that stanza splits; none for the whitespace splitter.
    """

    hidden_size: int
    max_width: int
    max_words: int
    class_token: str
    class_token_id: int | None
    separator_token: str
    embed_class_token: bool
    lstm_layers: int
    head: Head
    represent_spans: bool
    rows: int | None
    encoder: Mapping[str, Any] | None
    base: str
    languages: tuple[str, ...] = ()

    @property
    def adds_tokens(self) -> bool:
        """Whether the library adds its tokens to the tokenizer: only where the configuration leaves their ids open."""
        return self.class_token_id is None or self.rows is None


def read(
    folder: Path,
    chosen: Choices = DEFAULTS,
) -> Settings:
    """Read and check gliner_config.json in ``folder``.

    Args:
        folder: The checkpoint.
        chosen: The user's parameters.

    Raises:
        SourceFileNotFound: It is missing.
        Unsupported: It is not a JSON object, or has a value that is not served.
    """
    return parse({**read_object(folder, CONFIG), **chosen.changes}, chosen.languages)


def max_words(folder: Path) -> int:
    """Return the words that a checkpoint takes of a text; raises as ``read``."""
    return integer(CONFIG, read_object(folder, CONFIG), "max_len", _MAX_WORDS)


def parse(values: dict[str, Any], languages: tuple[str, ...] = ()) -> Settings:
    """Check the object of a gliner_config.json; raises as ``read``. Defaults are the library's."""
    for name, accepted in _SINGLE.items():
        if name in values and values[name] not in accepted:
            error = refusal(CONFIG, name, values[name], accepted)
            raise Unsupported(f"{error}. {_HINTS[name]}") if name in _HINTS else error
    _check_splitter(values, languages)
    head: Head = "token" if values.get("span_mode") == SPAN_MODES["token"] else "span"
    check_kind(values.get("model_type"), "gliner_uni_encoder", head)
    encoder = values.get("encoder_config")
    if encoder is not None and not isinstance(encoder, dict):
        raise refusal(CONFIG, "encoder_config", encoder, ("an object", None))
    class_token_id = integer(CONFIG, values, "class_token_index", -1, least=-1)
    rows = integer(CONFIG, values, "vocab_size", -1, least=-1)
    layers = _lstm_layers(values)
    hidden_size = integer(CONFIG, values, "hidden_size", 512)
    if layers and hidden_size % 2:
        raise Unsupported(f"{CONFIG}: hidden_size is {hidden_size}; with an LSTM it must be even")
    # the library derives both unless both are given
    derived = rows < 0 or class_token_id < 0
    return Settings(
        hidden_size=hidden_size,
        max_width=_max_width(values, head),
        max_words=_bounded(values, "max_len", _MAX_WORDS, _MOST_WORDS),
        class_token=_text(values, "ent_token", "<<ENT>>"),
        class_token_id=None if derived else class_token_id,
        separator_token=_text(values, "sep_token", "<<SEP>>"),
        embed_class_token=_boolean(values, "embed_ent_token", default=True),
        lstm_layers=layers,
        head=head,
        represent_spans=_represents_spans(values, head),
        rows=None if derived else rows,
        encoder=encoder,
        base=_text(values, "model_name", "microsoft/deberta-v3-small"),
        languages=languages,
    )


def check_kind(model_type: object, family: str, head: Head) -> None:
    """Refuse a model type of ``family`` that names another head than span_mode does: the library goes by span_mode alone."""
    if model_type in {f"{family}_{kind}" for kind in SPAN_MODES if kind != head}:
        raise Unsupported(
            f"{CONFIG}: model_type is {shown(model_type)}, and span_mode {shown(SPAN_MODES[head])}; they contradict each other"
        )


def _check_splitter(values: Mapping[str, Any], languages: tuple[str, ...]) -> None:
    """Refuse a splitter that is not served; stanza's is served only for languages that the user chose."""
    splitter = values.get("words_splitter_type", words.SPLITTER)
    if splitter != (stanza_words.SPLITTER if languages else words.SPLITTER):
        error = refusal(CONFIG, "words_splitter_type", splitter, (words.SPLITTER,))
        hint = words.advice(splitter)
        raise Unsupported(f"{error}. {hint}") if hint else error


def encoder_config(settings: Settings, auxiliary: Mapping[str, Path], spec: EncoderSpec) -> dict[str, Any]:
    """Return the encoder's own configuration, checked.

    Args:
        settings: The checkpoint's.
        auxiliary: Folders of the auxiliary repositories, by repository.
        spec: What the plugin serves.

    Raises:
        SourceFileNotFound: It is in a repository that is not among them.
        Unsupported: It is of another family, or a field has a value that is not served.
    """
    where, found = published_encoder(settings, auxiliary)
    if found.get("model_type") != spec.model_type:
        raise Unsupported(
            f"{where}.model_type is {shown(found.get('model_type'))}; {spec.plugin} serves {shown(spec.model_type)}"
            f"{_other_plugin(found.get('model_type'), settings.head)}"
        )
    if settings.head not in spec.heads:
        raise Unsupported(
            f"{CONFIG}: span_mode is {shown(SPAN_MODES[settings.head])}; {spec.plugin} serves"
            f" {' and '.join(shown(SPAN_MODES[head]) for head in spec.heads)}"
            f"{_other_plugin(spec.model_type, settings.head)}"
        )
    if found.get("auto_map"):
        raise RemoteCodeRefused(f"{where} has an auto_map, which names code of a repository; such code is never run")
    for name, accepted in spec.fixed.items():
        if name in found and found[name] not in accepted:
            raise refusal(where, name, found[name], accepted)
    # a choice among implementations of the same function
    for name in ("_attn_implementation", "attn_implementation"):
        found.pop(name, None)
    return found


def published_encoder(settings: Settings, auxiliary: Mapping[str, Path]) -> tuple[str, dict[str, Any]]:
    """Return where the encoder's own configuration is, for messages, and a copy of it; raises SourceFileNotFound as ``encoder_config``."""
    if settings.encoder is not None:
        # as the library takes it
        return f"{CONFIG}: encoder_config", {"model_type": "deberta-v2", **settings.encoder}
    folder = auxiliary_folder(settings, auxiliary, "no encoder_config")
    return f"{settings.base}: {ENCODER_CONFIG}", read_object(folder, ENCODER_CONFIG)


def tokenizer_folder(settings: Settings, folder: Path, auxiliary: Mapping[str, Path]) -> Path:
    """Return the folder that the library takes the tokenizer from: the checkpoint's own, if it has its configuration.

    Raises:
        SourceFileNotFound: It is in a repository that is not there.
        Unsupported: It cuts long prompts off at the front.
    """
    if not (folder / TOKENIZER_CONFIG).is_file():
        folder = auxiliary_folder(settings, auxiliary, f"no {TOKENIZER_CONFIG}")
        if not (folder / TOKENIZER_CONFIG).is_file():
            return folder
    about = read_object(folder, TOKENIZER_CONFIG)
    limit = about.get("model_max_length", UNLIMITED)
    if about.get("truncation_side", "right") != "right" and limit < UNLIMITED:
        raise Unsupported(
            f"{TOKENIZER_CONFIG}: truncation_side is {shown(about['truncation_side'])} and model_max_length {limit}: a long"
            " prompt would lose its labels; supported: right"
        )
    return folder


def auxiliary_folder(settings: Settings, auxiliary: Mapping[str, Path], reason: str) -> Path:
    """Return the folder of the encoder's repository: the one named in the checkpoint, or the only one that was given.

    Raises:
        SourceFileNotFound: It is not there; the message says what to add.
    """
    # those with tokenizers of languages are counted, and named, elsewhere
    _, auxiliary = stanza_words.separate(auxiliary, settings.languages)
    if settings.base in auxiliary:
        return auxiliary[settings.base]
    if len(auxiliary) == 1:
        return next(iter(auxiliary.values()))
    given = f"; given are {', '.join(auxiliary)}" if auxiliary else ""
    raise SourceFileNotFound(
        f"the checkpoint has {reason}, and names the repository {settings.base} for it{given}: pin that one as well, with"
        f" source.auxiliary: [{{repo: {settings.base}, revision: <commit>}}], or --auxiliary {settings.base}@<commit>"
    )


def context(max_words: int) -> int:
    """Return how many tokens are served where positions are only relative, and any number would be right.

    Four tokens for every word that is taken, which is more than ordinary text of any script needs, and 2 560 for labels: some
    five hundred of them. More would let a single request hold a scheduler step for long: attention costs its square.
    """
    return -(-(4 * max_words + 2560) // 1024) * 1024


def _other_plugin(model_type: object, head: Head) -> str:
    """Name the plugin that serves GLiNER with an encoder and a head, if there is one."""
    # imported here: the catalogue's plugins import this module when their checkpoint objects are resolved
    from encoder_plugins import catalog
    from encoder_plugins.plugin import resolve

    for plugin in catalog.plugins().values():
        if plugin.reference_library == "gliner":
            spec = getattr(resolve(plugin.checkpoint), "spec", None)
            if (
                isinstance(spec, EncoderSpec)
                and spec.model_type == model_type
                and head in spec.heads
                and spec.labels is None
            ):
                return f"; the plugin {plugin.name} serves this one"
    return ""


def _lstm_layers(values: dict[str, Any]) -> int:
    """Return the number of LSTM layers; `has_rnn` is the field of older versions, which today's library ignores."""
    # the library has no LSTM where there are less than one
    layers = max(integer(CONFIG, values, "num_rnn_layers", 1, least=-1), 0)
    if "num_rnn_layers" not in values and not _boolean(values, "has_rnn", default=True):
        raise Unsupported(
            f"{CONFIG}: has_rnn is false, which gliner 0.2.29 ignores: it would compute with an LSTM of random weights."
            " Say num_rnn_layers: 0 in a copy of the checkpoint, and give that as the source"
        )
    return layers


def _represents_spans(values: Mapping[str, Any], head: Head) -> bool:
    """Return whether the spans that words propose are scored again; a head of spans has no words that could."""
    found = values.get("represent_spans")
    accepted = (False, None) if head == "span" else (False, None, True)
    if not any(found is value for value in accepted):
        raise refusal(CONFIG, "represent_spans", found, accepted)
    return found is True


def _max_width(values: dict[str, Any], head: Head) -> int:
    """Return the words of the longest span; a head of words has none, so that the library never reads the field."""
    if head == "token" and values.get("max_width") is None:
        return _DEFAULT_WIDTH
    return _bounded(values, "max_width", _DEFAULT_WIDTH, _MOST_WIDTH)


def _bounded(values: dict[str, Any], name: str, default: int, most: int) -> int:
    """Return a size for which the library, and the engine, have memory."""
    value = integer(CONFIG, values, name, default)
    if value > most:
        raise Unsupported(f"{CONFIG}: {name} is {value}; supported: at most {most}")
    return value


def _boolean(values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise Unsupported(f"{CONFIG}: {name} is {shown(value)}; expected true or false")
    return value


def _text(values: Mapping[str, Any], name: str, default: str) -> str:
    value = values.get(name, default)
    if not isinstance(value, str) or not value:
        raise Unsupported(f"{CONFIG}: {name} is {shown(value)}; expected a text")
    return value
