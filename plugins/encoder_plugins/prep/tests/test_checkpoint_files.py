"""Which files of a checkpoint are taken."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from encoder_plugins.errors import PickleRefused, PluginError, RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.prep.checkpoint import Selection, SourceFile
from encoder_plugins.prep.checkpoint_files import (
    auxiliary,
    converted_name,
    enforce,
    is_root_weights,
    left_out,
    module_folders,
    refuse_code,
    refuse_escapes,
    require_shards,
    select_folders,
)

DENSE = json.dumps([{"path": "", "type": "x.Transformer"}, {"path": "2_Dense", "type": "x.Dense"}]).encode()


def chosen(*paths: str, modules: bytes | None = None, allow_pickle: bool = False) -> tuple[set[str], set[str]]:
    files = [SourceFile(path=path, size=1) for path in paths]
    found = select_folders(files, module_folders(modules))
    enforce(found, files, allow_pickle=allow_pickle)
    return {file.path for file in found.files}, {file.path for file in found.pickles}


def test_other_formats_of_the_same_weights_stay_behind() -> None:
    files = ["model.safetensors", "config.json", "tokenizer.json", "sentencepiece.bpe.model"]
    others = ["pytorch_model.bin", "tf_model.h5", "rust_model.ot", "flax_model.msgpack", "model.onnx", "model.tflite"]
    others += ["onnx/model.onnx", "onnx/config.json", "openvino/openvino_model.xml", "checkpoint-1/model.safetensors"]
    others += [".gitattributes", "README.md", "train.py", "model.fp16.safetensors", "model.safetensors.index.json"]
    assert chosen(*files, *others) == (set(files), set())


@pytest.mark.parametrize(
    "shards",
    [
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        # the only one is found by the index, too
        ["model-00001-of-00001.safetensors"],
        # of which another process has made the names
        ["part_1.safetensors", "part_2.safetensors"],
    ],
)
def test_shards_come_with_their_index_and_without_other_weights(shards: list[str]) -> None:
    files = [*shards, "model.safetensors.index.json"]
    others = ["pytorch_model.bin.index.json", "._model-00001-of-00002.safetensors", "._config.json"]
    others += ["consolidated.safetensors"] if shards[0].startswith("model-") else []
    assert chosen(*files, *others) == (set(files), set())


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}, None),
        ({"weight_map": {"a": "1.safetensors", "b": "3.safetensors"}}, "2_Dense/3.safetensors is missing: 2_Dense/"),
        ({"weight_map": {"a": "../model.safetensors"}}, "is missing"),
        ({"weight_map": {"a": 1}}, "has no weight_map"),
        ([], "has no weight_map"),
    ],
)
def test_an_index_names_files_that_are_taken(content: object, error: str | None) -> None:
    taken = ["model.safetensors", "2_Dense/1.safetensors", "2_Dense/2.safetensors"]
    with nullcontext() if error is None else pytest.raises((SourceFileNotFound, Unsupported), match=error):
        require_shards("2_Dense/model.safetensors.index.json", json.dumps(content).encode(), taken)


def test_modules_bring_their_folders() -> None:
    files = {"model.safetensors", "modules.json", "2_Dense/config.json", "2_Dense/model.safetensors"}
    assert chosen(*files, "2_Dense/pytorch_model.bin", "3_Other/config.json", modules=DENSE) == (files, set())


def test_pickled_weights_are_taken_only_if_allowed_and_needed() -> None:
    files = [
        "model.safetensors",
        "2_Dense/config.json",
        "2_Dense/pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
    ]
    with pytest.raises(PickleRefused, match="2_Dense/pytorch_model"):
        chosen(*files, modules=DENSE)
    taken = chosen(*files, modules=DENSE, allow_pickle=True)
    assert taken == ({"model.safetensors", "2_Dense/config.json"}, {"2_Dense/pytorch_model.bin"})


def test_a_checkpoint_without_weights_is_refused() -> None:
    with pytest.raises(SourceFileNotFound):
        chosen("config.json", "onnx/model.onnx", "training_args.bin")


def test_at_most_three_pickles_are_named() -> None:
    names = [f"pytorch_model-0000{number}-of-00004.bin" for number in (1, 2, 3, 4)]
    with pytest.raises(PickleRefused) as caught:
        chosen(*reversed(names))
    assert f"weights are pickled only ({', '.join(names[:3])}), which can run code" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state_0.pth", "trainer_state.bin"]
)
def test_what_a_training_run_leaves_is_taken_for_no_weights(name: str) -> None:
    taken = chosen("pytorch_model.bin", f"{name}", f"my_{name}", allow_pickle=True)
    assert taken == (set(), {"pytorch_model.bin", f"my_{name}"})


def test_code_is_selected_beside_the_files_and_everything_by_its_path() -> None:
    files = [SourceFile(path=path, size=1) for path in ("z.py", "b.json", "model.safetensors", "a.py", "a.txt")]
    found = select_folders(files, [""])
    assert [file.path for file in found.files] == ["a.txt", "b.json", "model.safetensors"]
    assert [file.path for file in found.code] == ["a.py", "z.py"]


def test_weights_of_another_name_are_taken_where_there_is_no_index() -> None:
    assert chosen("a.safetensors", "b.safetensors", "other.index.json") == ({"a.safetensors", "b.safetensors"}, set())


def test_a_folder_that_is_named_twice_is_taken_once() -> None:
    modules = json.dumps([{"path": "1_Pooling"}, {"type": "x.Normalize"}, {"path": "1_Pooling"}]).encode()
    assert module_folders(modules) == ("", "1_Pooling")
    assert module_folders(None) == ("",)


@pytest.mark.parametrize(
    ("path", "root"),
    [("model.safetensors", True), ("2_Dense/model.safetensors", False), ("tokenizer.json", False)],
)
def test_weights_of_the_root_are_those_in_no_folder(path: str, root: bool) -> None:
    assert is_root_weights(SourceFile(path=path, size=1)) is root


def auxiliary_of(selected: Selection | None, *paths: str, allow_pickle: bool = False) -> list[str]:
    """Return the paths that are taken of an auxiliary repository, of which the plugin selects this."""
    plugin: Any = SimpleNamespace(auxiliary_files=lambda name, listing: selected)
    listing = [SourceFile(path=path, size=1) for path in paths]
    return [file.path for file in auxiliary(plugin, "encoder", listing, allow_pickle=allow_pickle)]


def test_an_auxiliary_repository_gives_its_texts_unless_the_plugin_selects_more() -> None:
    listed = ("tokenizer.json", "model.safetensors", "config.json", "onnx/config.json", "model.safetensors.index.json")
    assert auxiliary_of(None, *listed) == ["config.json", "tokenizer.json"]
    with pytest.raises(SourceFileNotFound, match="neither configuration nor tokenizer in its root"):
        auxiliary_of(None, "model.safetensors", "onnx/config.json")
    pickled = Selection(files=(SourceFile(path="b.json", size=1),), pickles=(SourceFile(path="a.pt", size=1),))
    assert auxiliary_of(pickled, allow_pickle=True) == ["a.pt", "b.json"]
    with pytest.raises(PickleRefused, match=r"the auxiliary repository encoder has pickled models \(a\.pt\)"):
        auxiliary_of(pickled)
    assert auxiliary_of(Selection(files=pickled.files)) == ["b.json"]


WEIGHTS = SourceFile(path="model.safetensors", size=1)


@pytest.mark.parametrize("path", ["pytorch_model.bin", "a.pt", "state.pkl", "modeling.py"])
def test_a_plugin_cannot_pass_a_pickle_or_code_as_a_plain_file(path: str) -> None:
    odd = SourceFile(path=path, size=1)
    with pytest.raises(Unsupported, match=path):
        enforce(Selection(files=(WEIGHTS, odd)), [WEIGHTS, odd], allow_pickle=True)


def test_a_plugin_cannot_select_what_the_source_does_not_list() -> None:
    with pytest.raises(Unsupported, match="other"):
        enforce(Selection(files=(WEIGHTS, SourceFile(path="other.json", size=1))), [WEIGHTS], allow_pickle=False)


def test_a_plugin_cannot_select_a_path_outside_even_if_it_is_listed() -> None:
    outside = SourceFile(path="../weights.bin", size=1)
    for selected in (Selection(files=(WEIGHTS, outside)), Selection(files=(WEIGHTS,), pickles=(outside,))):
        with pytest.raises(Unsupported, match="which is not a plain relative path"):
            enforce(selected, [WEIGHTS, outside], allow_pickle=True)


def test_files_that_are_left_out_are_named() -> None:
    adapter = SourceFile(path="adapter/weights.safetensors", size=1)
    assert left_out([WEIGHTS, adapter], Selection(files=(WEIGHTS,))) == ["adapter/weights.safetensors"]


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a\\x", "a//x"])
def test_a_listing_cannot_write_elsewhere(path: str) -> None:
    with pytest.raises(Unsupported):
        refuse_escapes(["config.json", path])
    with pytest.raises(Unsupported):
        module_folders(json.dumps([{"path": path}]).encode())


@pytest.mark.parametrize("content", [b"{", b"{}", b"[1]", b'[{"path": 3}]', b"\xff", b"[" * 100_000])
def test_a_list_of_modules_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(Unsupported):
        module_folders(content)


@pytest.mark.parametrize(
    ("path", "content", "error"),
    [
        ("config.json", {"auto_map": {"AutoModel": "modeling.Model"}}, RemoteCodeRefused),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a/b--tok.Tok", None]}}, RemoteCodeRefused),
        ("gliner_config.json", {"encoder_config": {"auto_map": {"AutoModel": "m.M"}}}, RemoteCodeRefused),
        ("modules.json", [{"path": "", "type": "custom_st.Transformer"}], RemoteCodeRefused),
        ("modules.json", [{"path": "", "type": "a_library.Transformer"}], None),
        ("modules.json", [{"path": ""}, {"type": "train"}], RemoteCodeRefused),
        # of files that are listed, only scripts are code
        ("modules.json", [{"path": "", "type": "modules.Transformer"}], None),
        ("config.json", {"encoders": [{"a": 1}, {"auto_map": {"AutoModel": "m.M"}}]}, RemoteCodeRefused),
        ("config.json", {"auto_map": {}, "text_config": {"auto_map": None}}, None),
        ("config.json", {"architectures": ["BertModel"]}, None),
        ("vocab.json", ["a", "b"], None),
    ],
)
def test_code_of_a_repository_is_refused(path: str, content: object, error: type[PluginError] | None) -> None:
    listing = [path, "custom_st.py", "train.py"]
    if error is None:
        refuse_code(path, json.dumps(content).encode(), listing)
    else:
        with pytest.raises(error):
            refuse_code(path, json.dumps(content).encode(), listing)


def test_a_configuration_that_is_nested_too_deeply_is_refused() -> None:
    refused = 0
    for depth in range(1, sys.getrecursionlimit() + 2, 5):
        try:
            refuse_code("config.json", b"[" * depth + b"]" * depth, [])
        except Unsupported:
            refused += 1
    assert refused > 0


def test_converted_weights_have_the_name_that_loaders_look_for() -> None:
    assert converted_name("2_Dense/pytorch_model.bin") == "2_Dense/model.safetensors"
    assert converted_name("pytorch_model-00001-of-00002.bin") == "model-00001-of-00002.safetensors"
