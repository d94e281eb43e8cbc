"""Which LoRA adapters `serve` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from encoder_plugins import catalog
from encoder_plugins.errors import BadArgument
from encoder_plugins.serving import command as serve
from encoder_plugins.serving import entrypoint
from encoder_plugins.serving.command import Adapter

PLUGIN = catalog.get("sentence_transformer")


def test_an_adapter_is_a_name_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = serve.adapters_from(["a=/adapters/a", "b=c=d"])
    assert found == {"a": Path("/adapters/a"), "b": tmp_path / "c=d"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["a"], "--adapter a: it must be NAME=FOLDER"),
        (["a="], "--adapter a=: it must be NAME=FOLDER"),
        (["=/a"], "--adapter =/a: it must be NAME=FOLDER"),
        (["a=/a", "b=/a", "a=/b"], "--adapter a: the name is there twice"),
    ],
)
def test_what_is_not_an_adapter_is_refused_by_the_reason(given: list[str], says: str) -> None:
    with pytest.raises(BadArgument) as caught:
        serve.adapters_from(given)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    "config",
    [
        *(None, "{", "[]", "{}", '{"r": 0}', '{"r": true}', '{"r": "8"}'),
        *('{"r": 1, "rank_pattern": 8}', '{"r": 1, "rank_pattern": {"q": 0}}'),
    ],
)
def test_an_adapter_that_is_none_is_refused(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(BadArgument, match=f"--adapter a.*{tmp_path}"):
        entrypoint.read_adapter("a", tmp_path, PLUGIN)
    (tmp_path / "adapter_config.json").write_text('{"r": 1}')
    assert entrypoint.read_adapter("a", tmp_path, PLUGIN) == Adapter(name="a", path=tmp_path, rank=1)
    # the engine needs room for the largest
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "rank_pattern": {"q": 4, "k": 32}}')
    assert entrypoint.read_adapter("a", tmp_path, PLUGIN).rank == 32
    for fields in ('"bias": "none", "init_lora_weights": true', '"bias": null, "init_lora_weights": "gaussian"'):
        (tmp_path / "adapter_config.json").write_text(
            f'{{"r": 8, "use_dora": false, "layer_replication": null, {fields}}}'
        )
        assert entrypoint.read_adapter("a", tmp_path, PLUGIN).rank == 8


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"lora_r": 8}, "gliner2's save_adapter"),
        ({"r": 8, "use_dora": True}, "use_dora in .* is true, which vLLM does not serve; merge"),
        ({"r": 8, "bias": "lora_only"}, 'bias in .* is "lora_only"'),
        ({"r": 8, "lora_bias": True}, "lora_bias in .* is true"),
        ({"r": 8, "init_lora_weights": "pissa_niter_4"}, "init_lora_weights in .* is"),
        ({"r": 8, "layer_replication": [[0, 1]]}, "layer_replication in .* is"),
        ({"r": 8, "modules_to_save": ["norm"]}, "modules_to_save in .* is"),
    ],
)
def test_an_adapter_of_another_form_is_refused_by_it(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(BadArgument, match=f"--adapter a: .*{reason}"):
        entrypoint.read_adapter("a", tmp_path, PLUGIN)


def test_an_adapter_of_a_head_is_refused_by_its_layers(tmp_path: Path) -> None:
    plugin = catalog.get("deberta_gliner2")
    (tmp_path / "adapter_config.json").write_text('{"r": 1}')

    def save(*layers: str) -> None:
        names = [f"base_model.model.{layer}.lora_{part}.weight" for layer in layers for part in "AB"]
        save_file({name: np.zeros((1, 1), np.float32) for name in names}, tmp_path / "adapter_model.safetensors")

    save("encoder.encoder.layer.0.attention.self.query_proj", "encoder.layer.1.output.dense")
    assert entrypoint.read_adapter("a", tmp_path, plugin).rank == 1
    heads = [
        "classifier.0",
        "count_embed.projector.0",
        "count_pred.0",
        "count_pred.2",
        "span_rep.span_rep_layer.out_project.0",
    ]
    save("encoder.encoder.layer.0.attention.self.query_proj", *heads)
    with pytest.raises(
        BadArgument, match=r"--adapter a: it changes classifier\.0, .*, count_pred\.2 and 1 more, and deberta_gliner2"
    ):
        entrypoint.read_adapter("a", tmp_path, plugin)
    # four are all named
    save(*heads[:4])
    with pytest.raises(
        BadArgument, match=r"--adapter a: it changes classifier\.0, .*, count_pred\.2, and deberta_gliner2"
    ):
        entrypoint.read_adapter("a", tmp_path, plugin)
    # of another plugin, whatever vLLM finds
    assert entrypoint.read_adapter("a", tmp_path, PLUGIN).rank == 1
    (tmp_path / "adapter_model.safetensors").write_bytes(b"{}")
    with pytest.raises(
        BadArgument, match=f"--adapter a: {tmp_path}: adapter_model.safetensors is not a safetensors file"
    ):
        entrypoint.read_adapter("a", tmp_path, plugin)
