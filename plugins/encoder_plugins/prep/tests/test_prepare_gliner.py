"""GLiNER checkpoints as people publish them, built by the library, prepared, and loaded by the library again."""

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
from encoder_plugins.errors import PickleRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner.config import KEY, GlinerConfig
from encoder_plugins.prep.pipeline import Prepared, hooks_of, prepare
from encoder_plugins.prep.progress import Progress
from encoder_plugins.prep.request import Auxiliary, Request

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")
    import sentencepiece

    from encoder_checkpoints import gliner as builder
    from encoder_checkpoints.vocabularies import SENTENCES
    from encoder_plugins.families.gliner import conversion, reference

PLUGINS = builder.PLUGINS
WEIGHTS = "model.safetensors"
Build = Callable[..., Path]


# the library warns of words that it leaves out
pytestmark = pytest.mark.filterwarnings("ignore:Sentence of length:UserWarning")


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
        hooks, target = hooks_of(catalog.get(plugin)), tmp_path / "converted"
        target.mkdir()
        assert hooks.check is not None
        assert hooks.convert is not None
        hooks.check(folder, auxiliary or {})
        hooks.convert(folder, auxiliary or {}, target)
        return target

    return convert


def silent() -> Progress:
    return Progress(lambda line: None)


def prepared(plugin: str, source: Path | str, output: Path, **changes: Any) -> Prepared:
    request = Request(plugin=catalog.get(plugin), source=str(source), output=output, **changes)
    return prepare(request, silent())


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
def test_a_published_checkpoint_becomes_an_artifact_that_the_library_reads_the_same(
    plugin: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    source, output = published(plugin), tmp_path / "key"
    result = prepared(plugin, source, output)
    artifact.verify(output, result.digest)
    config = json.loads((output / "model" / "config.json").read_bytes())
    gliner = GlinerConfig.from_dict(config[KEY])
    assert config["architectures"] == list(catalog.get(plugin).architectures)
    assert (gliner.max_words, gliner.max_width, gliner.hidden_size, gliner.lstm_layers) == (120, 6, 64, 1)
    names = {
        "config.json",
        "gliner_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {path.name for path in (output / "model").iterdir()} == names
    cases = json.loads((output / artifact.CASES).read_bytes())
    expected = load_arrays(output / artifact.EXPECTED)
    assert {case["id"] for case in cases} == set(expected)
    # the reference was computed from the artifact; it has to be that of the checkpoint as it was published
    library = load(source)
    for case in (found for found in cases if found["ask"] == "entities"):
        words, logits = reference.logits(library, case["text"], case["labels"])
        assert words == case["words"]
        # another number of threads changes the last bits of a sum
        np.testing.assert_allclose(expected[case["id"]], logits, atol=2e-5)
        assert_same(reference.answer(library, case, case["threshold"]), case["entities"])
    assert [case["id"] for case in cases if not case["words"]] == ["no-word"]
    by_id = {case["id"]: case for case in cases}
    assert by_id["empty-result"]["entities"] == []
    assert by_id["short"]["low"]
    assert len(by_id["overlong"]["words"]) == gliner.max_words


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    names = ("start", "end", "text", "label")
    assert [[entity[name] for name in names] for entity in ours] == [
        [entity[name] for name in names] for entity in theirs
    ]
    np.testing.assert_allclose([entity["score"] for entity in ours], [entity["score"] for entity in theirs], atol=1e-5)


def load(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reference.load(folder)


def test_a_prepared_artifact_is_found_again_and_weights_are_not_copied_in_vain(
    published: Callable[[str], Path], converted: Callable[..., Path], tmp_path: Path
) -> None:
    source = shutil.copytree(published("deberta_gliner"), tmp_path / "mine")
    target = converted(source)
    assert (target / WEIGHTS).samefile(source / WEIGHTS)
    first = prepared("deberta_gliner", source, tmp_path / "key")
    assert prepared("deberta_gliner", source, tmp_path / "key") == first
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
    load(target)


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
    prepared("deberta_gliner", source, tmp_path / "key", allow_pickle=True)
    ours, theirs = (load_arrays(path / WEIGHTS) for path in (tmp_path / "key" / "model", published("deberta_gliner")))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor)


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
    # the tokens were added as the library adds them, so that this is the same model as the one published whole
    theirs = load(published("deberta_gliner"))
    for case in json.loads((tmp_path / "key" / artifact.CASES).read_bytes()):
        if case["ask"] == "entities":
            assert_same(reference.answer(theirs, case, case["threshold"]), case["entities"])
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
        first = prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=pinned, **changes)
        asked = hub.requests("example/deberta-v3")
        assert prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=pinned, **changes) == first
        assert hub.requests("example/deberta-v3") == asked
        other = (Auxiliary("example/deberta-v3", "0" * 40),)
        with pytest.raises(Unsupported, match=commit):
            prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=other, **changes)
    manifest = artifact.read(tmp_path / "key")
    assert manifest.source["auxiliary"] == [{"kind": "huggingFace", "repo": "example/deberta-v3", "revision": commit}]


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
        prepared("deberta_gliner", source, tmp_path / "key", auxiliary=(pinned,), stall_seconds=20.0)
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
        ({"class_token_index": 2002}, r"class_token_index is 2002, and the tokenizer has '<<ENT>>' at 2001"),
        ({"class_token_index": 7}, r"class_token_index is 7"),
        ({"vocab_size": 2004}, r"vocab_size is 2004, and .*word_embeddings\.weight has 2003 rows"),
        ({"ent_token": "<<E>>"}, r"class_token_index|<<E>>"),
        ({"hidden_size": 128}, r"asks for \["),
        ({"hidden_size": 96}, r"projection\.weight, which nothing would read"),
        ({"num_rnn_layers": 0}, r"rnn\.lstm"),
        ({"num_rnn_layers": ..., "has_rnn": False}, r"rnn\.lstm"),
        ({"num_rnn_layers": 2}, r"rnn\.lstm\.\w+_l1"),
        ({"encoder_config": {"model_type": "modernbert"}}, "modernbert"),
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
    library = load(target)
    assert {parameter.dtype for parameter in library.model.parameters()} == {torch.float32}


def test_the_keys_of_old_versions_mean_the_same(copied: Callable[[str], Path], converted: Build) -> None:
    source = copied("deberta_gliner")
    # what today's library writes and a version of 2024 did not
    newer = ("num_rnn_layers", "embed_ent_token", "subtoken_pooling", "represent_spans", "span_encoder_config")
    changes: dict[str, Any] = {"has_rnn": True, **dict.fromkeys(newer, ...)}
    change(source, **changes)
    served = json.loads((converted(source) / "config.json").read_bytes())[KEY]
    assert (served["lstm_layers"], served["embed_class_token"]) == (1, True)


def test_a_checkpoint_without_lstm_by_its_old_name_is_served_without(converted: Build, tmp_path: Path) -> None:
    source = builder.build(tmp_path / "plain", "deberta_gliner", num_rnn_layers=0)
    change(source, num_rnn_layers=..., has_rnn=False)
    target = converted(source)
    assert json.loads((target / "config.json").read_bytes())[KEY]["lstm_layers"] == 0
    # the library ignores the old name and would draw a random LSTM; the artifact names it as the library does today
    assert not hasattr(load(target).model, "rnn")


def test_a_tokenizer_without_the_tokens_gets_them_only_where_their_ids_are_right(
    old: tuple[Path, Path], converted: Build
) -> None:
    source, base = old
    change(source, class_token_index=2000)
    # one less: a version of the library that added no [FLERT]; the separator's row is there, and [FLERT]'s is not needed
    target = converted(source, auxiliary={"example/deberta-v3": base})
    served = json.loads((target / "config.json").read_bytes())[KEY]
    assert (served["class_token_id"], served["separator_token_id"]) == (2000, 2001)


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
    # [MASK] comes behind the pieces, and then the library's own
    change(source, class_token_index=302, vocab_size=2003)
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


def test_the_right_number_of_tensors_is_the_librarys_own(published: Callable[[str], Path]) -> None:
    values = json.loads((published("mt5_gliner") / "gliner_config.json").read_bytes())
    shapes, ties = conversion.expected_tensors(values)
    with safe_open(published("mt5_gliner") / WEIGHTS, framework="numpy") as tensors:
        assert set(tensors.keys()) == set(shapes)
    assert list(ties) == ["token_rep_layer.bert_layer.model.encoder.embed_tokens.weight"]
