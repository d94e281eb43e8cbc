"""GLiNER checkpoints as users publish them, built by the library, prepared, and compared with what the library computes from them."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file, save_file

from encoder_plugins import catalog
from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact import reference as references
from encoder_plugins.errors import PickleRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner.cases import LABELS, TEXTS
from encoder_plugins.families.gliner.config import KEY, LABELS_TOKENIZER, GlinerConfig
from encoder_plugins.families.gliner.parity import PARITY
from encoder_plugins.families.gliner.tests.library import Library
from encoder_plugins.plugin import resolve
from encoder_plugins.prep import reference_environment
from encoder_plugins.prep.request import Auxiliary
from encoder_plugins.prep.tests.changed_checkpoint import WEIGHTS, Build, change, nothing, prepared, rewrite

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")

    from encoder_checkpoints import gliner as builder

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread", "one_recorder")]
PLUGINS = builder.PLUGINS
SPAN = "span_rep_layer.span_rep_layer.out_project.3.weight"


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    names = ("start", "end", "text", "label")
    assert [[entity[name] for name in names] for entity in ours] == [
        [entity[name] for name in names] for entity in theirs
    ]
    np.testing.assert_allclose([entity["score"] for entity in ours], [entity["score"] for entity in theirs], atol=1e-5)


def test_another_splitter_is_one_changed_field_of_the_reference(copied: Build, tmp_path: Path) -> None:
    source, output = copied("mt5_gliner"), tmp_path / "key"
    logits = Library(source).logits(TEXTS["scripts"], list(LABELS)).numpy()
    change(source, words_splitter_type="stanza")
    with pytest.raises(Unsupported, match=r'words_splitter_type is "stanza".*prepare\.parameters\.wordsSplitter'):
        prepared("mt5_gliner", source, tmp_path / "refused", record=nothing)
    result = prepared("mt5_gliner", source, output, parameters={"wordsSplitter": "whitespace"})
    manifest = artifact.verify(output, result.digest)
    assert manifest.source["published"] == artifact.tree_digest(source)
    assert manifest.source["parameters"] == {"wordsSplitter": "whitespace"}
    assert manifest.source["changed"] == {"gliner_config.json": {"words_splitter_type": "whitespace"}}
    reference = references.read(output)
    np.testing.assert_allclose(reference.expected["scripts"]["logits"], logits, atol=1e-5)
    # the same artifact is found again, and is no other's
    again = prepared("mt5_gliner", source, output, record=nothing, parameters={"wordsSplitter": "whitespace"})
    assert again == result
    with pytest.raises(Unsupported, match="parameters: "):
        prepared("mt5_gliner", source, output, record=nothing)


@pytest.mark.parametrize("form", [*PLUGINS, *builder.FURTHER])
def test_a_published_checkpoint_becomes_an_artifact_with_what_the_library_computes_from_it(
    form: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    plugin = builder.FURTHER.get(form, form)
    source, output = published(form), tmp_path / "key"
    result = prepared(plugin, source, output)
    manifest = artifact.verify(output, result.digest)
    assert manifest.source["published"] == artifact.tree_digest(source)
    assert "changed" not in manifest.source
    config = json.loads((output / "model" / "config.json").read_bytes())
    gliner = GlinerConfig.from_dict(config[KEY])
    (architecture,) = config["architectures"]
    assert architecture in catalog.get(plugin).architectures
    family = builder.FAMILIES[form]
    size = family.shapes["tiny"].hidden_size
    assert (gliner.max_words, gliner.max_width, gliner.hidden_size, gliner.lstm_layers) == (120, 6, size, 1)
    # nothing of the library's own format: the library never reads this folder
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    labels = set() if family.labels is None else {LABELS_TOKENIZER}
    assert {path.name for path in (output / "model").iterdir()} == names | labels
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
    assert not (tmp_path / ".staging").exists()


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
    # without it, this is another request
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
        before = hub.requests("example/deberta-v3")
        assert (
            prepared("deberta_gliner", "demo/old", tmp_path / "key", auxiliary=pinned, record=nothing, **changes)
            == first
        )
        assert hub.requests("example/deberta-v3") == before
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
