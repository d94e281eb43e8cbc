"""Convert a GLiNER checkpoint into the model folder of an artifact.

Imports torch and transformers, and the modules of our backbones; not gliner. Names and shapes of tensors come from the
layouts that the engine's model classes load with. Whether the result is right is for the reference to say, which the library
computes from the published files.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoTokenizer

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.gliner import checkpoint, stanza_words
from encoder_plugins.families.gliner.checkpoint import CONFIG, WEIGHTS, BackboneSpec, EncoderSpec, Settings
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.heads import layout as head_layouts
from encoder_plugins.families.gliner.parameters import Choices
from encoder_plugins.plugin import resolve
from encoder_plugins.prep.checkpoint import link
from encoder_plugins.prep.checkpoint_json import for_engine, shown
from encoder_plugins.prep.tensor_file import FLOATS, Header, read_header

# where gliner's checkpoints have their encoder
ENCODER = "token_rep_layer.bert_layer.model."
EMBEDDINGS = ("embed_tokens.weight", "shared.weight", "word_embeddings.weight", "tok_embeddings.weight")
# words whose tokens are compared after the tokenizer was written
PROBE = ("Straße", "naïve", "İstanbul", "東京", "don't", "3.14", "x\u0301", "ﬁne", "😀", "a-b", "ΟΔΥΣΣΕΥΣ")
# more names of tensors than these are counted
_NAMED = 3


def convert(
    spec: EncoderSpec,
    folder: Path,
    auxiliary: Mapping[str, Path],
    target: Path,
    chosen: Choices = checkpoint.DEFAULTS,
) -> None:
    """Write the model folder of an artifact.

    Args:
        spec: What the plugin serves.
        folder: The checkpoint, its weights as safetensors.
        auxiliary: Folders of the auxiliary repositories, by repository.
        target: The folder to write; it exists and is empty.
        chosen: The user's parameters.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    settings = checkpoint.read(folder, chosen)
    encoder = checkpoint.encoder_config(settings, auxiliary, spec)
    with quiet():
        tokenizer = text_tokenizer(checkpoint.tokenizer_folder(settings, folder, auxiliary))
        if settings.adds_tokens:
            added = [checkpoint.FLERT, settings.class_token, settings.separator_token]
            tokenizer.add_tokens(added, special_tokens=True)
        header = read_header(folder, WEIGHTS, missing="the library loads weights of no other name")
        rows = _rows(settings, header, len(tokenizer))
        complete = read_encoder(spec, settings, {**encoder, "vocab_size": rows})
        gliner = _gliner_config(settings, complete.hidden_size, tokenizer, rows)
        layout = expected_layout(spec, complete, gliner)
        require(layout, header)
        write_tokenizer(tokenizer, target)
        write_json(target / "config.json", served_config(spec, complete, gliner))
        write_weights(folder / WEIGHTS, target / WEIGHTS, layout, header)
    if chosen.languages:
        write_words(stanza_words.separate(auxiliary, chosen.languages)[0], target / stanza_words.FOLDER)


def read_encoder(spec: EncoderSpec, settings: Settings, encoder: Mapping[str, Any]) -> Any:
    """Complete an encoder's configuration with transformers' defaults, and read it with the engine's own function.

    Args:
        spec: What the plugin serves.
        settings: The checkpoint's.
        encoder: The encoder's own configuration.

    Returns:
        transformers' configuration object.

    Raises:
        Unsupported: A field has an impossible value, or one that the engine does not compute.
    """
    complete = complete_config(spec, encoder, f"{CONFIG}: encoder_config")
    positions = getattr(complete, "max_position_embeddings", None)
    absolute = not spec.relative or getattr(complete, "position_biased_input", False)
    if absolute and positions is not None and positions < settings.max_words:
        raise Unsupported(
            f"{CONFIG}: max_len is {settings.max_words} words, and encoder_config.max_position_embeddings only {positions}"
        )
    return complete


def complete_config(spec: BackboneSpec, encoder: Mapping[str, Any], where: str) -> Any:
    """Return the same without regard to texts; ``where`` is the configuration's place in the checkpoint."""
    try:
        complete = CONFIG_MAPPING[spec.model_type](**json.loads(json.dumps(dict(encoder))))
        found = resolve(spec.settings).read(complete)
        # a table of positions is computed when the engine loads the model, and cannot be for every choice of fields
        if index := getattr(found, "position_index", None):
            index()
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unsupported(f"{where}: {error}"[:500]) from error
    except Exception as error:
        if type(error).__module__.startswith("huggingface_hub"):
            # its validation of configurations has errors of its own, which name the field
            raise Unsupported(f"{where}: {' '.join(str(error).split())}"[:500]) from error
        raise
    return complete


def expected_layout(spec: EncoderSpec, encoder: Any, gliner: GlinerConfig) -> Any:
    """Return the layout that the engine's model class loads: encoder and head."""
    return head_layouts.layout(resolve(spec.layout)(encoder), encoder.hidden_size, gliner)


def text_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of texts as the library does."""
    tokenizer = fast_tokenizer(folder)
    # as the library: only where the tokenizer defines them, since assigning rebuilds the template of special tokens
    if hasattr(tokenizer, "add_bos_token") and tokenizer.bos_token_id is not None:
        tokenizer.add_bos_token = True
    if hasattr(tokenizer, "add_eos_token") and tokenizer.eos_token_id is not None:
        tokenizer.add_eos_token = True
    return tokenizer


def fast_tokenizer(folder: Path) -> Any:
    """Load a tokenizer as it is; raises Unsupported if that fails, or if it has no fast form."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # whatever a broken tokenizer makes the libraries raise
        raise Unsupported(f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"[:500]) from error
    if not getattr(tokenizer, "is_fast", False):
        raise Unsupported("the tokenizer has no fast form, which prompts are built with")
    return tokenizer


def _gliner_config(settings: Settings, width: int, tokenizer: Any, rows: int) -> GlinerConfig:
    """Return the head's configuration, with ids that tokenizer and weights agree on."""
    ids = {
        name: _single(tokenizer, key, name)
        for key, name in (("ent_token", settings.class_token), ("sep_token", settings.separator_token))
    }
    class_id = ids[settings.class_token]
    # where the configuration leaves it open, the library takes the last token but one
    read_at = len(tokenizer) - 2 if settings.class_token_id is None else settings.class_token_id
    if read_at != class_id:
        raise Unsupported(
            f"{CONFIG}: class_token_index is {shown(settings.class_token_id)}, so that the library reads labels at token"
            f" {read_at}, and the tokenizer has {settings.class_token!r} at {class_id}"
        )
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise Unsupported(f"the tokenizer has ids up to {largest}, and the embedding only {rows} rows")
    return GlinerConfig(
        hidden_size=settings.hidden_size,
        max_width=settings.max_width,
        max_words=settings.max_words,
        class_token=settings.class_token,
        class_token_id=class_id,
        separator_token=settings.separator_token,
        separator_token_id=ids[settings.separator_token],
        embed_class_token=settings.embed_class_token,
        lstm_layers=settings.lstm_layers,
        projection=settings.hidden_size != width,
        head=settings.head,
        represent_spans=settings.represent_spans,
        languages=settings.languages,
    )


def _single(tokenizer: Any, key: str, token: str) -> int:
    """Return the id of a token that the tokenizer must know as one."""
    found = tokenizer([token], is_split_into_words=True, add_special_tokens=False)["input_ids"]
    if len(found) != 1 or tokenizer.convert_ids_to_tokens(found[0]) != token:
        raise Unsupported(f"{CONFIG}: {key} is {token!r}, which the tokenizer does not know as one token: {found[:8]}")
    return int(found[0])


def _rows(settings: Settings, header: Header, entries: int) -> int:
    """Return the rows of the embedding, which configuration and tokenizer must not contradict."""
    for name, shape in header.shapes.items():
        if name.startswith(ENCODER) and name.endswith(EMBEDDINGS):
            if settings.rows not in (None, shape[0]):
                raise Unsupported(f"{CONFIG}: vocab_size is {settings.rows}, and {name} has {shape[0]} rows")
            if settings.rows is None and shape[0] != entries:
                raise Unsupported(
                    f"{WEIGHTS}: {name} has {shape[0]} rows, and the tokenizer {entries} entries with the library's tokens"
                )
            return shape[0]
    raise Unsupported(f"{WEIGHTS}: the tensor of the encoder's word embeddings is missing")


def require(layout: Any, header: Header) -> None:
    """Refuse weights that are not exactly those of the configuration."""
    for name, dtype in header.dtypes.items():
        if dtype not in FLOATS and name not in layout.ignored:
            raise Unsupported(f"{WEIGHTS}: {name} is {dtype}; supported: {', '.join(sorted(FLOATS))}")
    given = {layout.aliases.get(name, name) for name in header.shapes}
    if missing := layout.shapes.keys() - given:
        raise Unsupported(f"{WEIGHTS}: {_some(missing)} missing, which the configuration requires")
    if surplus := given - layout.shapes.keys() - layout.ignored.keys():
        raise Unsupported(f"{WEIGHTS}: {_some(surplus)} surplus, which nothing would read")
    for name, shape in header.shapes.items():
        expected = layout.shapes.get(layout.aliases.get(name, name), shape)
        if tuple(shape) != tuple(expected):
            raise Unsupported(f"{WEIGHTS}: {name} is {list(shape)}, and the configuration requires {list(expected)}")


def _some(names: set[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"{', '.join(ordered[:_NAMED])}{more} {'is' if len(ordered) == 1 else 'are'}"


def served_config(spec: EncoderSpec, encoder: Any, gliner: GlinerConfig) -> dict[str, Any]:
    """Return config.json: the encoder's own with every default spelled out, our architecture, and the head."""
    served: dict[str, Any] = encoder.to_dict()
    if served.get("max_relative_positions") in (-1, 0):
        # the encoder's own number: what follows may change what it stands for
        served["max_relative_positions"] = served.get("max_position_embeddings")
    if spec.relative and not served.get("position_biased_input", False):
        served["max_position_embeddings"] = checkpoint.context(gliner.max_words)
    for name in ("dtype", "torch_dtype", "_name_or_path", "_attn_implementation"):
        served.pop(name, None)
    return {**for_engine(served), **spec.changes, "architectures": [spec.architecture], KEY: gliner.to_dict()}


def write_tokenizer(tokenizer: Any, target: Path, *, of_words: bool = True) -> None:
    """Write the tokenizer so that every loader gets these very steps, and none that a class adds.

    Args:
        tokenizer: As the library loads it.
        target: The folder to write to.
        of_words: Whether it gets words, as for texts; whole strings otherwise, as for labels.
    """
    # what the last call before publishing left behind
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(target)
    path = target / checkpoint.TOKENIZER_CONFIG
    about = json.loads(path.read_text(encoding="utf-8"))
    # this class takes tokenizer.json as it is; the encoders' own ones rebuild parts of it
    about["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("auto_map", "add_bos_token", "add_eos_token", "name_or_path"):
        about.pop(name, None)
    # one that cuts at the left was refused, unless it never cuts
    about["truncation_side"] = "right"
    write_json(path, about)
    again = AutoTokenizer.from_pretrained(target, local_files_only=True)
    words = [*PROBE, "a", *tokenizer.all_special_tokens]
    before, after = (one(words, is_split_into_words=of_words)["input_ids"] for one in (tokenizer, again))
    if before != after:
        raise Unsupported("the tokenizer changes when it is written in its fast form")


def write_weights(source: Path, target: Path, layout: Any, header: Header) -> None:
    """Put the weights in place: the same file where it holds just what the engine loads."""
    if header.shapes.keys() == layout.shapes.keys():
        link(source, target)
        return
    tensors = load_file(source)
    for alias, name in layout.aliases.items():
        if alias in tensors and name in tensors and not torch.equal(tensors[alias], tensors[name]):
            raise Unsupported(f"{WEIGHTS}: {alias} and {name} are one tensor in the library, and differ")
    named = {layout.aliases.get(name, name): tensor for name, tensor in tensors.items()}
    save_file({name: named[name] for name in layout.shapes}, target, metadata={"format": "pt"})
    # safetensors writes for its own user alone, and the engine may be another
    target.chmod(0o644)


def check_words(folders: Mapping[str, Path]) -> None:
    """Refuse models of stanza that it would not load, or that need files of other repositories.

    Raises:
        Unsupported: The message names the file.
    """
    for path, file in stanza_words.resources(folders)[0].items():
        try:
            config = torch.load(file, map_location="cpu", weights_only=True)["config"]
            needs = config.get("charlm_forward_file")
        except Exception as error:
            # torch raises errors of many types for files that it did not write
            raise Unsupported(f"stanza's model {path}: {type(error).__name__}: {error}"[:500]) from error
        if needs:
            raise Unsupported(f"stanza's model {path} needs the character language model {needs}, which is not served")


def write_words(folders: Mapping[str, Path], target: Path) -> None:
    """Write the folder that stanza takes its models from."""
    taken, about = stanza_words.resources(folders)
    for path, file in taken.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        link(file, target / path)
    (target / stanza_words.RESOURCES).write_text(about, encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of the libraries about what is checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
