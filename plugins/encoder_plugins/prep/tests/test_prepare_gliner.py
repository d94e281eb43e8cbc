"""GLiNER checkpoints as people publish them, built by the library, prepared, and compared with what the library computes from them."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file, save_file

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact import reference as references
from encoder_plugins.errors import NotServable, PickleRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.families.gliner.parity import PARITY
from encoder_plugins.families.gliner.tests.library import Library, call
from encoder_plugins.plugin import resolve
from encoder_plugins.prep import reference_environment
from encoder_plugins.prep.checkpoint import SourceFile
from encoder_plugins.prep.pipeline import Prepared, prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Request

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")
    import sentencepiece

    from encoder_checkpoints import gliner as builder
    from encoder_checkpoints.vocabularies import SENTENCES

PLUGINS = builder.PLUGINS
WEIGHTS = "model.safetensors"
Build = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads cost more than they give where there is little to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def copied(published: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy that a test may change."""

    def get(plugin: str) -> Path:
        folder: Path = shutil.copytree(published(plugin), tmp_path / "changed")
        return folder

    return get


@pytest.fixture
def converted(tmp_path: Path) -> Callable[..., Path]:
    """Check and convert a checkpoint, without recording anything."""

    def convert(folder: Path, plugin: str = "deberta_gliner", auxiliary: dict[str, Path] | None = None) -> Path:
        checkpoint, target = resolve(catalog.get(plugin).checkpoint), tmp_path / "converted"
        target.mkdir()
        checkpoint.check(folder, auxiliary or {})
        checkpoint.convert(folder, auxiliary or {}, target)
        return target

    return convert


def silent() -> Progress:
    return Progress(lambda line: None)


def prepared(plugin: str, source: Path | str, output: Path, *, record: Any = None, **changes: Any) -> Prepared:
    request = Request(plugin=catalog.get(plugin), source=str(source), output=output, **changes)
    return prepare(request, silent(), record)


def nothing(*arguments: Any, **options: Any) -> references.Recording:
    """Record nothing: for tests that are about something else."""
    return references.Recording(cases=[{"id": "one"}], outputs={"one": {"logits": np.zeros(1, np.float32)}}, about={})


def change(folder: Path, name: str = "gliner_config.json", **values: Any) -> None:
    path = folder / name
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in values.items():
        if value is ...:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def rewrite(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_published_checkpoint_becomes_an_artifact_with_what_the_library_computes_from_it(
    plugin: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    source, output = published(plugin), tmp_path / "key"
    result = prepared(plugin, source, output)
    manifest = artifact.verify(output, result.digest)
    assert manifest.source["published"] == artifact.tree_digest(source)
    assert "changed" not in manifest.source
    config = json.loads((output / "model" / "config.json").read_bytes())
    gliner = GlinerConfig.from_dict(config[KEY])
    assert config["architectures"] == list(catalog.get(plugin).architectures)
    assert (gliner.max_words, gliner.max_width, gliner.hidden_size, gliner.lstm_layers) == (120, 6, 64, 1)
    # nothing of the library's own format: the library never reads this folder
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (output / "model").iterdir()} == names
    reference, library = references.read(output), Library(source)
    by_id = {case["id"]: case for case in reference.cases}
    for name in ("short", "turkish", "overlong", "many-labels", "nested-several-labels"):
        case = by_id[name]
        logits = library.logits(case["text"], case["labels"]).numpy()
        # another number of threads changes the last bits of a sum
        np.testing.assert_allclose(reference.expected[name]["logits"], logits, atol=2e-5)
        rounded = reference.expected[name]["logits_bfloat16"]
        assert 1e-4 < np.abs(rounded - logits).max() < 2
        options = {field: case[field] for field in ("threshold", "flat_ner", "multi_label")}
        assert_same(library.entities(case["text"], case["labels"], **options), case["entities"])
    assert [case["id"] for case in reference.cases if not case["words"]] == ["no-word"]
    assert by_id["empty-result"]["entities"] == []
    assert len(by_id["overlong"]["words"]) == gliner.max_words
    assert f"{'short'}:scores" in by_id


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    names = ("start", "end", "text", "label")
    assert [[entity[name] for name in names] for entity in ours] == [
        [entity[name] for name in names] for entity in theirs
    ]
    np.testing.assert_allclose([entity["score"] for entity in ours], [entity["score"] for entity in theirs], atol=1e-5)


def test_the_reference_does_not_depend_on_what_conversion_writes(
    published: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in conversion must not be on both sides of the comparison."""
    checkpoint = resolve(catalog.get("deberta_gliner").checkpoint)
    right = prepared("deberta_gliner", published("deberta_gliner"), tmp_path / "right")
    convert = type(checkpoint).convert

    def mistaken(self: Any, folder: Path, auxiliary: Any, target: Path) -> None:
        convert(self, folder, auxiliary, target)
        tensors = load_file(target / WEIGHTS)
        (target / WEIGHTS).unlink()
        save_file({name: torch.zeros_like(value) for name, value in tensors.items()}, target / WEIGHTS)

    monkeypatch.setattr(type(checkpoint), "convert", mistaken)
    wrong = prepared("deberta_gliner", published("deberta_gliner"), tmp_path / "wrong")
    assert wrong.digest != right.digest
    assert wrong.reference == right.reference


def test_a_prepared_artifact_is_found_again_and_weights_are_not_copied_in_vain(
    published: Callable[[str], Path], converted: Callable[..., Path], tmp_path: Path
) -> None:
    source = shutil.copytree(published("deberta_gliner"), tmp_path / "mine")
    target = converted(source)
    assert (target / WEIGHTS).samefile(source / WEIGHTS)
    first = prepared("deberta_gliner", source, tmp_path / "key", record=nothing)
    assert prepared("deberta_gliner", source, tmp_path / "key", record=nothing) == first
    assert not list((tmp_path / ".staging").iterdir())


def test_the_tied_tables_of_mt5_are_written_once(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("mt5_gliner")
    table, other = (
        f"token_rep_layer.bert_layer.model.{name}" for name in ("shared.weight", "encoder.embed_tokens.weight")
    )
    # as a pickle, or any other file that keeps both
    rewrite(source, lambda tensors: tensors.update({other: tensors[table].clone()}))
    target = converted(source, "mt5_gliner")
    with safe_open(target / WEIGHTS, framework="numpy") as tensors:
        assert table in tensors.keys()  # noqa: SIM118 - it is no dictionary
        assert other not in tensors.keys()  # noqa: SIM118


def test_tied_tables_that_differ_are_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("mt5_gliner")
    table, other = (
        f"token_rep_layer.bert_layer.model.{name}" for name in ("shared.weight", "encoder.embed_tokens.weight")
    )
    rewrite(source, lambda tensors: tensors.update({other: tensors[table] + 1}))
    with pytest.raises(Unsupported, match=r"embed_tokens\.weight"):
        converted(source, "mt5_gliner")


def test_pickled_weights_need_permission_and_then_give_the_same_tensors(
    published: Callable[[str], Path], tmp_path: Path
) -> None:
    source = builder.build(tmp_path / "pickled", "deberta_gliner", weights="pickle")
    assert not (source / WEIGHTS).exists()
    with pytest.raises(PickleRefused, match=r"pytorch_model\.bin"):
        prepared("deberta_gliner", source, tmp_path / "key")
    assert not (tmp_path / "key").exists()
    # the library reads the pickle itself
    prepared("deberta_gliner", source, tmp_path / "key", allow_pickle=True)
    ours, theirs = (load_arrays(path / WEIGHTS) for path in (tmp_path / "key" / "model", published("deberta_gliner")))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor)
    expected = references.read(tmp_path / "key").expected["short"]["logits"]
    logits = Library(published("deberta_gliner")).logits(
        *(references.read(tmp_path / "key").cases[0][name] for name in ("text", "labels"))
    )
    np.testing.assert_allclose(expected, logits.numpy(), atol=2e-5)


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint without encoder configuration and tokenizer, and the folder that has them."""
    base = tmp_path / "models" / "example" / "deberta-v3"
    source = builder.build(tmp_path / "models" / "demo" / "old", "deberta_gliner", auxiliary=base)
    assert {path.name for path in source.iterdir()} == {"gliner_config.json", WEIGHTS}
    return source, base


def test_encoder_and_tokenizer_come_from_another_repository(
    old: tuple[Path, Path], published: Callable[[str], Path], tmp_path: Path
) -> None:
    source, base = old
    with pytest.raises(SourceFileNotFound, match=r"--auxiliary example/deberta-v3@<commit>"):
        prepared("deberta_gliner", source, tmp_path / "key")
    prepared("deberta_gliner", source, tmp_path / "key", auxiliary=(Auxiliary(str(base)),))
    manifest = artifact.read(tmp_path / "key")
    (further,) = manifest.source["auxiliary"]
    assert further["kind"] == "pvc"
    assert len(further["revision"]) == 64
    # the one field that points to the other repository, and nothing else, was changed for the library
    assert manifest.source["changed"] == {"gliner_config.json": {"model_name": "auxiliary/0"}}
    assert manifest.source["published"] == artifact.tree_digest(source)
    # the library adds its tokens, so that this is the same model as the one published whole
    reference, theirs = references.read(tmp_path / "key"), Library(published("deberta_gliner"))
    for case in reference.cases[:5]:
        logits = theirs.logits(case["text"], case["labels"]).numpy()
        np.testing.assert_allclose(reference.expected[case["id"]]["logits"], logits, atol=2e-5)
    # without it, this is not what is asked for
    with pytest.raises(Unsupported, match="auxiliary"):
        prepared("deberta_gliner", source, tmp_path / "key")


def test_an_auxiliary_repository_of_a_hub_is_pinned_and_gives_no_weights(
    old: tuple[Path, Path], tmp_path: Path, run_hub: Callable[..., AbstractContextManager[Any]]
) -> None:
    _, base = old
    (base / "pytorch_model.bin").write_bytes(b"\0" * 4096)
    with run_hub("--models", str(tmp_path / "models")) as hub:
        commit = hub.revision_of("example/deberta-v3")
        changes: dict[str, Any] = {
            "revision": hub.revision_of("demo/old"),
            "endpoint": hub.address,
            "stall_seconds": 20.0,
        }
        with pytest.raises(Unsupported, match="example/deberta-v3@<commit>"):
            prepared(
                "deberta_gliner", "demo/old", tmp_path / "key", auxiliary=(Auxiliary("example/deberta-v3"),), **changes
            )
        pinned = (Auxiliary("example/deberta-v3", commit),)
        first = prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=pinned, record=nothing, **changes)
        asked = hub.requests("example/deberta-v3")
        assert (
            prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=pinned, record=nothing, **changes)
            == first
        )
        assert hub.requests("example/deberta-v3") == asked
        other = (Auxiliary("example/deberta-v3", "0" * 40),)
        with pytest.raises(Unsupported, match=commit):
            prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=other, **changes)
    manifest = artifact.read(tmp_path / "key")
    (further,) = manifest.source["auxiliary"]
    assert further == {
        "kind": "huggingFace",
        "repo": "example/deberta-v3",
        "revision": commit,
        "files": artifact.tree_digest(base, only={"config.json", "tokenizer.json", "tokenizer_config.json"}),
    }


def test_beside_a_folder_the_hub_of_an_auxiliary_repository_is_that_of_the_environment(
    old: tuple[Path, Path],
    tmp_path: Path,
    run_hub: Callable[..., AbstractContextManager[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, _ = old
    with run_hub("--models", str(tmp_path / "models")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        pinned = Auxiliary("example/deberta-v3", hub.revision_of("example/deberta-v3"))
        assert not hub.requests(pinned.source)
        prepared("deberta_gliner", source, tmp_path / "key", auxiliary=(pinned,), record=nothing, stall_seconds=20.0)
        assert hub.requests(pinned.source)


def test_an_auxiliary_repository_without_text_files_is_named(old: tuple[Path, Path], tmp_path: Path) -> None:
    source, _ = old
    empty = tmp_path / "weights-only"
    empty.mkdir()
    (empty / "model.safetensors").write_bytes(b"")
    with pytest.raises(SourceFileNotFound, match="auxiliary"):
        prepared("deberta_gliner", source, tmp_path / "key", auxiliary=(Auxiliary(str(empty)),))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"class_token_index": 2002}, r"class_token_index is 2002, .* and the tokenizer has '<<ENT>>' at 2001"),
        ({"class_token_index": 7}, r"class_token_index is 7"),
        ({"vocab_size": 2004}, r"vocab_size is 2004, and .*word_embeddings\.weight has 2003 rows"),
        ({"ent_token": "<<E>>"}, r"class_token_index|<<E>>"),
        ({"hidden_size": 128}, r"asks for \["),
        ({"hidden_size": 96}, r"projection\.weight are surplus, which nothing would read"),
        ({"num_rnn_layers": 0}, r"rnn\.lstm"),
        ({"num_rnn_layers": ..., "has_rnn": False}, r"has_rnn is false, which gliner 0\.2\.29 ignores"),
        ({"num_rnn_layers": 2}, r"rnn\.lstm\.\w+_l1"),
        ({"encoder_config": {"model_type": "modernbert"}}, "the plugin mmbert_gliner serves this one"),
    ],
)
def test_pieces_that_do_not_belong_together_are_refused_by_name(
    values: dict[str, Any], named: str, copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("deberta_gliner")
    change(source, **values)
    with pytest.raises(Unsupported, match=named):
        converted(source)


SPAN = "span_rep_layer.span_rep_layer.out_project.3.weight"
POSITIONS = "token_rep_layer.bert_layer.model.embeddings.position_ids"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda tensors: tensors.pop(SPAN), SPAN),
        (lambda tensors: tensors.pop("rnn.lstm.weight_hh_l0_reverse"), "weight_hh_l0_reverse"),
        (lambda tensors: tensors.pop("token_rep_layer.projection.bias"), r"projection\.bias"),
        (lambda tensors: tensors.update({"scorer.weight": torch.zeros(2)}), r"scorer\.weight"),
        (lambda tensors: tensors.update({SPAN: tensors[SPAN][:, :-1].contiguous()}), SPAN),
        (lambda tensors: tensors.update({SPAN: tensors[SPAN].to(torch.int8)}), "I8"),
        (lambda tensors: tensors.clear(), "word embeddings"),
    ],
)
def test_weights_that_are_not_exactly_those_of_the_configuration_are_refused_by_name(
    edit: Callable[[dict[str, torch.Tensor]], Any], named: str, copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("deberta_gliner")
    rewrite(source, edit)
    with pytest.raises(Unsupported, match=named):
        converted(source)


def test_weights_under_another_name_are_not_what_the_library_loads(
    copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("deberta_gliner")
    (source / WEIGHTS).rename(source / "other.safetensors")
    with pytest.raises(SourceFileNotFound, match=r"model\.safetensors"):
        converted(source)


def test_a_file_of_weights_that_is_none_is_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    (source / WEIGHTS).write_bytes(b"no tensors")
    with pytest.raises(Unsupported, match=r"model\.safetensors"):
        converted(source)


def test_what_older_versions_wrote_beside_is_left_behind(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    rewrite(source, lambda tensors: tensors.update({POSITIONS: torch.arange(128)[None]}))
    with safe_open(converted(source) / WEIGHTS, framework="numpy") as tensors:
        assert POSITIONS not in tensors.keys()  # noqa: SIM118 - it is no dictionary


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_the_size_stay_as_they_are(
    dtype: torch.dtype, copied: Callable[[str], Path], converted: Build
) -> None:
    source = copied("mmbert_gliner")
    rewrite(source, lambda tensors: tensors.update({name: value.to(dtype) for name, value in tensors.items()}))
    target = converted(source, "mmbert_gliner")
    assert {tensor.dtype for tensor in load_file(target / WEIGHTS).values()} == {dtype}


def test_the_fields_of_old_versions_mean_the_same(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    # what today's library writes and a version of 2024 did not
    newer = ("num_rnn_layers", "embed_ent_token", "subtoken_pooling", "represent_spans", "span_encoder_config")
    changes: dict[str, Any] = {"has_rnn": True, **dict.fromkeys(newer, ...)}
    change(source, **changes)
    served = json.loads((converted(source) / "config.json").read_bytes())[KEY]
    assert (served["lstm_layers"], served["embed_class_token"]) == (1, True)


def test_a_checkpoint_without_lstm_is_served_without(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "plain", "deberta_gliner", num_rnn_layers=0)
    assert json.loads((converted(source) / "config.json").read_bytes())[KEY]["lstm_layers"] == 0


def test_tokens_are_added_only_where_the_library_adds_them(old: tuple[Path, Path], converted: Build) -> None:
    source, base = old
    # with both ids given, the library takes the tokenizer as it is, and finds no class token in it
    change(source, class_token_index=2001, vocab_size=2003)
    with pytest.raises(Unsupported, match="ent_token is '<<ENT>>', which the tokenizer does not know"):
        converted(source, auxiliary={"example/deberta-v3": base})


def test_a_tokenizer_that_outgrows_the_embedding_is_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    table = "token_rep_layer.bert_layer.model.embeddings.word_embeddings.weight"
    rewrite(source, lambda tensors: tensors.update({table: tensors[table][:-1].contiguous()}))
    change(source, vocab_size=2002)
    with pytest.raises(Unsupported, match="ids up to 2002, and the embedding only 2002 rows"):
        converted(source)


def test_rows_beyond_the_tokenizer_are_fine(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "padded", "mt5_gliner", vocab_size=2048)
    with safe_open(source / WEIGHTS, framework="numpy") as tensors:
        assert tensors.get_slice("token_rep_layer.bert_layer.model.shared.weight").get_shape()[0] == 2048
    assert json.loads((converted(source, "mt5_gliner") / "config.json").read_bytes())["vocab_size"] == 2048


def test_a_sentencepiece_model_alone_is_turned_into_a_fast_tokenizer(
    copied: Callable[[str], Path], converted: Build, tmp_path: Path
) -> None:
    source = copied("deberta_gliner")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(source / "spm"),
        vocab_size=300,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
        minloglevel=2,
    )
    (source / "spm.vocab").unlink()
    about = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False}
    (source / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    # [MASK] comes behind the pieces, and then the library's own: 304 in all
    change(source, class_token_index=..., vocab_size=...)
    table = "token_rep_layer.bert_layer.model.embeddings.word_embeddings.weight"
    rewrite(source, lambda tensors: tensors.update({table: tensors[table][:304].contiguous()}))
    target = converted(source)
    served = json.loads((target / "config.json").read_bytes())[KEY]
    assert (served["class_token_id"], served["separator_token_id"]) == (302, 303)
    assert (target / "tokenizer.json").is_file()


def test_a_tokenizer_that_cannot_be_read_is_refused(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    (source / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(Unsupported, match="tokenizer"):
        converted(source)


def test_positions_keep_their_meaning_when_the_context_grows(
    published: Callable[[str], Path], converted: Build
) -> None:
    served = json.loads((converted(published("deberta_gliner")) / "config.json").read_bytes())
    # -1 stood for the encoder's own number of positions, which the buckets of long distances are made of
    assert served["max_relative_positions"] == 128
    assert served["max_position_embeddings"] == 3072


def test_absolute_positions_are_as_many_as_there_are(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "absolute", "deberta_gliner", encoder={"position_biased_input": True})
    assert json.loads((converted(source) / "config.json").read_bytes())["max_position_embeddings"] == 128


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_layout_that_the_engine_loads_has_the_tensors_of_the_library(
    plugin: str, published: Callable[[str], Path]
) -> None:
    from encoder_plugins.families.gliner import checkpoint, conversion

    spec = resolve(catalog.get(plugin).checkpoint).spec
    settings = checkpoint.read(published(plugin))
    encoder = conversion.read_encoder(spec, settings, checkpoint.encoder_config(settings, {}, spec))
    described = call("describe", str(published(plugin)))
    names = call("parameters", str(published(plugin)))
    head = described["config"] | {"projection": "token_rep_layer.projection.weight" in names}
    layout = conversion.expected_layout(spec, encoder, GlinerConfig.from_dict(head))
    assert {**{name: list(shape) for name, shape in layout.shapes.items()}} == {
        name: shape for name, shape in names.items() if name not in layout.aliases
    }


@pytest.mark.parametrize(
    ("plugin", "encoder", "named"),
    [
        ("deberta_gliner", {"num_attention_heads": 5}, "num_attention_heads"),
        ("deberta_gliner", {"hidden_size": "96"}, "hidden_size"),
        ("deberta_gliner", {"position_buckets": 512}, "buckets|max_distance|max_relative_positions"),
        ("deberta_gliner", {"position_biased_input": True, "max_position_embeddings": 64}, "max_len is 120"),
        ("mmbert_gliner", {"num_attention_heads": 3}, "num_attention_heads"),
        ("mmbert_gliner", {"max_position_embeddings": 100}, "max_len is 120"),
        ("mmbert_gliner", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, "rope"),
        ("mmbert_gliner", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope"),
        ("mt5_gliner", {"relative_attention_num_buckets": 31}, "buckets"),
        ("mt5_gliner", {"d_kv": "32"}, "d_kv"),
    ],
)
def test_an_encoder_that_the_engine_would_refuse_is_refused_before_its_weights_are_downloaded(
    plugin: str, encoder: dict[str, Any], named: str, copied: Callable[[str], Path]
) -> None:
    source = copied(plugin)
    config = json.loads((source / "gliner_config.json").read_bytes())
    change(source, encoder_config=config["encoder_config"] | encoder)
    (source / WEIGHTS).unlink()
    with pytest.raises(Unsupported, match=named):
        resolve(catalog.get(plugin).checkpoint).check(source, {})


def test_a_tokenizer_that_cuts_at_the_left_is_refused_if_it_cuts(copied: Callable[[str], Path]) -> None:
    source = copied("deberta_gliner")
    change(source, "tokenizer_config.json", truncation_side="left")
    check = resolve(catalog.get("deberta_gliner").checkpoint).check
    check(source, {})
    change(source, "tokenizer_config.json", model_max_length=512)
    with pytest.raises(Unsupported, match="truncation_side"):
        check(source, {})


@pytest.mark.parametrize("where", ["gliner_config.json", "encoder_config"])
def test_a_published_choice_of_attention_is_ignored(
    where: str, copied: Callable[[str], Path], converted: Build, tmp_path: Path
) -> None:
    source = copied("mmbert_gliner")
    chosen = {"_attn_implementation": "flash_attention_2"}
    config = json.loads((source / "gliner_config.json").read_bytes())
    changes = chosen if where == "gliner_config.json" else {"encoder_config": config["encoder_config"] | chosen}
    change(source, **changes)
    target = converted(source, "mmbert_gliner")
    assert "_attn_implementation" not in (target / "config.json").read_text()
    plugin = catalog.get("mmbert_gliner")
    cases = PARITY.cases(source, ())[:1]
    found = reference_environment.record(plugin, source, {}, cases)
    assert np.isfinite(found.outputs["short"]["logits"]).all()


def test_a_checkpoint_of_nan_is_refused_when_its_reference_is_recorded(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    source = copied("deberta_gliner")
    rewrite(source, lambda tensors: tensors[SPAN].__setitem__((0, 0), float("nan")))
    with pytest.raises(Unsupported, match=r"NaN or infinity .*case short"):
        prepared("deberta_gliner", source, tmp_path / "key")
    assert not (tmp_path / "key").exists()


def test_weights_that_the_library_would_draw_at_random_are_refused_by_the_recorder(
    copied: Callable[[str], Path],
) -> None:
    source = copied("deberta_gliner")
    rewrite(source, lambda tensors: tensors.pop("rnn.lstm.weight_hh_l0_reverse"))
    with pytest.raises(Unsupported, match=r"lacks rnn\.lstm\.weight_hh_l0_reverse"):
        reference_environment.record(catalog.get("deberta_gliner"), source, {}, PARITY.cases(source, ())[:1])


class Listed:
    """A listing without content."""

    def __init__(self, *paths: str, config: dict[str, Any] | None = None) -> None:
        self.paths, self.config = paths, config

    def __iter__(self) -> Iterator[SourceFile]:
        return iter([SourceFile(path=path, size=1) for path in self.paths])

    def read(self, path: str) -> bytes | None:
        return json.dumps(self.config or {}).encode()


@pytest.mark.parametrize(
    ("listing", "kind", "named"),
    [
        (
            Listed("config.json", "encoder_config/config.json", config={"model_type": "extractor"}),
            Unsupported,
            "GLiNER2",
        ),
        (Listed("config.json", "model.safetensors"), SourceFileNotFound, r"gliner_config\.json is missing"),
        (Listed("modules.json", "model.safetensors"), Unsupported, "sentence_transformer serves it"),
        (Listed("gliner_config.json", "model.onnx"), Unsupported, r"ONNX only \(model\.onnx\)"),
        (Listed("gliner_config.json", "model.safetensors", "adapter_config.json"), Unsupported, "adapter"),
    ],
)
def test_other_formats_are_refused_by_their_name(listing: Listed, kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        resolve(catalog.get("deberta_gliner").checkpoint).files(listing)


def test_the_engine_settings_are_those_of_the_converted_checkpoint(
    published: Callable[[str], Path], converted: Build
) -> None:
    target = converted(published("deberta_gliner"))
    settings = resolve(catalog.get("deberta_gliner").checkpoint).engine_settings(target, "cpu")
    assert (settings.max_model_len, settings.batch_tokens) == (3072, 3072)
    assert "--no-enable-chunked-prefill" in settings.arguments


def test_a_head_size_that_the_accelerator_lacks_is_refused_when_serving_starts(tmp_path: Path) -> None:
    sizes = {"hidden_size": 312, "num_attention_heads": 12, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "modernbert", **sizes}), encoding="utf-8")
    mmbert, deberta = (resolve(catalog.get(name).checkpoint) for name in ("mmbert_gliner", "deberta_gliner"))
    with pytest.raises(NotServable, match="26 wide"):
        mmbert.engine_settings(tmp_path, "cpu")
    assert mmbert.engine_settings(tmp_path, "nvidia").max_model_len == 512
    # its attention is ours, and takes any
    assert deberta.engine_settings(tmp_path, "cpu").max_model_len == 512
