"""Dense modules of a checkpoint: read, refused by name, and computed as sentence-transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.retrieval import dense
from encoder_plugins.families.retrieval.dense import DenseSpec
from encoder_plugins.families.retrieval.dense_layers import DenseChain

IDENTITY = "torch.nn.modules.linear.Identity"


def write(folder: Path, path: str, shapes: dict[str, tuple[int, ...]], **fields: Any) -> None:
    """Write one module as sentence-transformers does."""
    (folder / path).mkdir()
    config = {"activation_function": IDENTITY, "bias": False, **fields}
    (folder / path / "config.json").write_text(json.dumps(config))
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / path / dense.WEIGHTS)


def test_a_chain_is_read_with_its_residual_branches(tmp_path: Path) -> None:
    write(tmp_path, "2_Dense", {"linear.weight": (6, 4)}, in_features=4, out_features=6)
    both = {"linear.weight": (2, 6), "linear.bias": (2,), "residual.weight": (2, 6)}
    write(
        tmp_path,
        "3_Dense",
        both,
        in_features=6,
        out_features=2,
        bias=True,
        use_residual=True,
        activation_function="torch.nn.modules.activation.Tanh",
    )
    write(tmp_path, "4_Dense", {"linear.weight": (2, 2)}, in_features=2, out_features=2, use_residual=True)
    chain = dense.read_chain(tmp_path, ["2_Dense", "3_Dense", "4_Dense"], 4)
    assert chain == (
        DenseSpec(inputs=4, outputs=6, bias=False, activation="Identity"),
        DenseSpec(inputs=6, outputs=2, bias=True, activation="Tanh", residual=True),
        DenseSpec(inputs=2, outputs=2, bias=False, activation="Identity", residual=True),
    )
    layout = dense.layout(chain, "dense.", "chain.layers.")
    parameters = {f"chain.{name}": tuple(value.shape) for name, value in DenseChain(chain).named_parameters()}
    assert {layout.slot(name).parameter: shape for name, shape in layout.shapes.items()} == parameters
    with pytest.raises(Unsupported, match=r"3_Dense/config\.json: use_residual is true"):
        dense.read(tmp_path, "3_Dense", 6, residual=False)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"in_features": 5}, "in_features is 5, and the module before has 4"),
        ({"activation_function": "my.Swish"}, "activation_function is my.Swish"),
        ({"activation_function": "torch.nn.modules.activation.PReLU"}, "PReLU; supported are torch's GELU, Identity"),
        ({"activation_function": None}, "activation_function is None"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ({"out_features": "6"}, "out_features"),
        ({"use_residual": "yes"}, "use_residual"),
        ({"bias": True}, "2_Dense/model.safetensors: holds"),
        ({"use_residual": True}, "residual.weight"),
    ],
    ids=str,
)
def test_a_module_that_would_be_served_differently_is_refused(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    write(tmp_path, "2_Dense", {"linear.weight": (6, 4)}, **{"in_features": 4, "out_features": 6, **fields})
    with pytest.raises(Unsupported) as caught:
        dense.read(tmp_path, "2_Dense", 4)
    assert named in str(caught.value)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    write(tmp_path, "2_Dense", {"linear.weight": (6, 4)}, in_features=4, out_features=6)
    (tmp_path / "2_Dense" / dense.WEIGHTS).unlink()
    with pytest.raises(SourceFileNotFound, match=r"2_Dense/model\.safetensors is missing"):
        dense.read(tmp_path, "2_Dense", 4)


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 4)], ids=["vectors", "rows"])
def test_a_chain_is_computed_in_its_order(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    chain = DenseChain(
        (
            DenseSpec(inputs=4, outputs=6, bias=True, activation="GELU", residual=True),
            DenseSpec(inputs=6, outputs=6, bias=False, activation="Tanh", residual=True),
            DenseSpec(inputs=6, outputs=2, bias=False, activation="Identity"),
        )
    )
    layers: Any = chain.layers
    first, second, third = layers
    given = torch.randn(shape)
    one = nn.functional.gelu(given @ first.linear.weight.T + first.linear.bias) + given @ first.residual.weight.T
    two = torch.tanh(one @ second.linear.weight.T) + one
    torch.testing.assert_close(chain(given), two @ third.linear.weight.T)
    assert chain(given.bfloat16()).dtype == torch.float32
