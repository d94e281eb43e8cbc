"""Which files of a checkpoint are taken."""

from __future__ import annotations

import json

import pytest

from encoder_plugins.errors import PickleRefused, PluginError, RemoteCodeRefused, SourceFileNotFound, Unsupported
from encoder_plugins.prep.checkpoint import Selection, SourceFile
from encoder_plugins.prep.checkpoint_files import (
    converted_name,
    enforce,
    left_out,
    module_folders,
    refuse_code,
    refuse_escapes,
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


def test_shards_come_with_their_index_and_without_other_weights() -> None:
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert chosen(*files, "consolidated.safetensors", "pytorch_model.bin.index.json") == (set(files), set())


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


WEIGHTS = SourceFile(path="model.safetensors", size=1)


@pytest.mark.parametrize("path", ["pytorch_model.bin", "a.pt", "state.pkl", "modeling.py"])
def test_a_plugin_cannot_pass_a_pickle_or_code_as_a_plain_file(path: str) -> None:
    odd = SourceFile(path=path, size=1)
    with pytest.raises(Unsupported, match=path):
        enforce(Selection(files=(WEIGHTS, odd)), [WEIGHTS, odd], allow_pickle=True)


def test_a_plugin_cannot_select_what_the_source_does_not_list() -> None:
    with pytest.raises(Unsupported, match="other"):
        enforce(Selection(files=(WEIGHTS, SourceFile(path="other.json", size=1))), [WEIGHTS], allow_pickle=False)


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


def test_converted_weights_have_the_name_that_loaders_look_for() -> None:
    assert converted_name("2_Dense/pytorch_model.bin") == "2_Dense/model.safetensors"
    assert converted_name("pytorch_model-00001-of-00002.bin") == "model-00001-of-00002.safetensors"
