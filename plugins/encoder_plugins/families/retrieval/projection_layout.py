"""The projection between encoder and rows, as plain data: what its folders hold, and the tensors of an artifact.

Standard library and safetensors only: prep checks with it what the engine loads by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.config import DenseConfig
from encoder_plugins.prep.checkpoint_json import integer, read_object, shown
from encoder_plugins.prep.tensor_file import read_header

# torch's modules that a Dense may end with, by the last part of their names
ACTIVATIONS = frozenset({"Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid"})
TOKENS = "token_embeddings"
# what precedes the names of tensors in an artifact, and of parameters in the model
PREFIX, PARAMETERS = "projection.", "pooler.projection."


def read_dense(folder: Path, path: str, width: int) -> DenseConfig:
    """Read and check one Dense module of a published checkpoint.

    Args:
        folder: The checkpoint.
        path: The module's folder below it.
        width: Width of what the module before it gives.

    Raises:
        Unsupported: It needs something that is not served, or its weights are not those of its configuration.
        SourceFileNotFound: A file is missing.
    """
    name = f"{path}/config.json"
    config = read_object(folder, name)
    for field in ("module_input_name", "module_output_name"):
        if config.get(field) not in (None, TOKENS):
            raise Unsupported(f"{name}: {field} is {shown(config[field])}; supported: {TOKENS}")
    # the library takes another activation without a warning where it does not trust the name
    activation = str(config.get("activation_function"))
    if not activation.startswith("torch.nn.") or activation.rpartition(".")[2] not in ACTIVATIONS:
        raise Unsupported(
            f"{name}: activation_function is {activation}; supported are torch's {', '.join(sorted(ACTIVATIONS))}"
        )
    if integer(name, config, "in_features") != width:
        raise Unsupported(f"{name}: in_features is {config['in_features']}, and the module before has {width}")
    found = DenseConfig(
        inputs=width,
        outputs=integer(name, config, "out_features"),
        bias=_flag(name, config.get("bias", True), "bias"),
        activation=activation.rpartition(".")[2],
        residual=_flag(name, config.get("use_residual", False), "use_residual"),
    )
    weights = f"{path}/model.safetensors"
    shapes = read_header(folder, weights, missing="it has the weights of a Dense module").shapes
    if shapes != (expected := tensors(found)):
        raise Unsupported(f"{weights}: holds {shown(shapes)}; expected is {shown(expected)}")
    return found


def _flag(name: str, value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise Unsupported(f"{name}: {field} is {shown(value)}; supported: true, false")
    return value


def tensors(dense: DenseConfig) -> dict[str, Shape]:
    """Return the tensors of one module."""
    shapes = linear("linear", dense.outputs, dense.inputs, bias=dense.bias)
    return shapes | (linear("residual", dense.outputs, dense.inputs, bias=False) if dense.projects_residual else {})


def layout(projection: Sequence[DenseConfig]) -> CheckpointLayout:
    """Return the tensors of all modules in an artifact."""
    shapes = {
        f"{PREFIX}{index}.{name}": shape
        for index, dense in enumerate(projection)
        for name, shape in tensors(dense).items()
    }
    return CheckpointLayout(shapes=shapes, slot=lambda name: ParameterSlot(f"{PARAMETERS}{name.removeprefix(PREFIX)}"))
