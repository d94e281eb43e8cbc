"""The Dense modules behind an encoder, as a checkpoint in sentence-transformers format describes them. No torch.

``y = activation(W x + b)``; with a residual branch ``x`` is added, or ``R x`` where the widths differ. PyLate writes the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, linear
from encoder_plugins.errors import Unsupported
from encoder_plugins.prep.checkpoint_json import integer, read_object, shown
from encoder_plugins.prep.tensor_file import read_header

# classes of torch.nn that are served, each without arguments
ACTIVATIONS = frozenset({"Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid"})

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """One Dense module.

    Attributes:
        inputs: Width before it.
        outputs: Width behind it.
        bias: Whether it has a bias.
        activation: The class of torch.nn that follows, one of ``ACTIVATIONS``.
        residual: Whether the input is added to the output.
    """

    inputs: int
    outputs: int
    bias: bool
    activation: str
    residual: bool = False

    @property
    def projects_residual(self) -> bool:
        """Whether the residual branch has a matrix, because the widths differ."""
        return self.residual and self.inputs != self.outputs

    def shapes(self) -> dict[str, Shape]:
        """Return the tensors of the module's own file."""
        tensors = linear("linear", self.outputs, self.inputs, bias=self.bias)
        if self.projects_residual:
            tensors |= linear("residual", self.outputs, self.inputs, bias=False)
        return tensors


def read(
    folder: Path, path: str, width: int, *, features: str = "sentence_embedding", residual: bool = True
) -> DenseSpec:
    """Read and check a Dense module of a checkpoint, its configuration and the header of its weights.

    Args:
        folder: The checkpoint.
        path: The module's folder below it.
        width: Numbers of a vector before the module.
        features: What the module has to be applied to: ``sentence_embedding`` or ``token_embeddings``.
        residual: Whether it may have a residual branch.

    Raises:
        Unsupported: The module does something else, or its weights are not those of its configuration.
        SourceFileNotFound: One of its files is missing.
    """
    name = f"{path}/config.json"
    config = read_object(folder, name)
    for field in ("module_input_name", "module_output_name"):
        if config.get(field) not in (features, None):
            raise Unsupported(f"{name}: {field} is {config[field]!r}, which is not supported; supported: {features}")
    for field in ("use_residual", "bias"):
        if config.get(field) not in (True, False, None):
            raise Unsupported(f"{name}: {field} is {shown(config[field])}; it must be true or false")
    if config.get("use_residual") and not residual:
        raise Unsupported(f"{name}: use_residual is true, which is not supported")
    # sentence-transformers takes Tanh where the field is missing, vLLM no activation
    activation = str(config.get("activation_function"))
    kind = activation.rpartition(".")[2]
    if not activation.startswith("torch.nn.") or kind not in ACTIVATIONS:
        raise Unsupported(
            f"{name}: activation_function is {activation}; supported are torch's {', '.join(sorted(ACTIVATIONS))}"
        )
    if config.get("in_features") != width:
        raise Unsupported(f"{name}: in_features is {config.get('in_features')}, and the module before has {width}")
    spec = DenseSpec(
        inputs=width,
        outputs=integer(name, config, "out_features"),
        bias=bool(config.get("bias", True)),
        activation=kind,
        residual=bool(config.get("use_residual", False)),
    )
    weights = f"{path}/{WEIGHTS}"
    shapes = read_header(folder, weights, missing="the module's weights are in a file of this name").shapes
    if shapes != spec.shapes():
        raise Unsupported(f"{weights}: holds {shown(shapes)}; expected is {shown(spec.shapes())}")
    return spec


def read_chain(
    folder: Path, paths: Sequence[str], width: int, *, features: str = "sentence_embedding"
) -> tuple[DenseSpec, ...]:
    """Read Dense modules that follow each other; raises as ``read`` does."""
    chain: list[DenseSpec] = []
    for path in paths:
        chain.append(read(folder, path, chain[-1].outputs if chain else width, features=features))
    return tuple(chain)


def from_config(values: Sequence[Any]) -> tuple[DenseSpec, ...]:
    """Return a chain from what ``dataclasses.asdict`` made of each module, as the engine's config.json has it."""
    return tuple(DenseSpec(**value) for value in values)


def layout(chain: Sequence[DenseSpec], prefix: str, parameter_prefix: str) -> CheckpointLayout:
    """Return the tensors of a chain: those of each module behind its number, e.g. ``dense.0.linear.weight``.

    Args:
        chain: The modules.
        prefix: What precedes the number in the checkpoint, e.g. ``dense.``.
        parameter_prefix: What precedes the number in the model: where a ``dense_layers.DenseChain`` has its layers.
    """
    return CheckpointLayout(
        shapes={
            f"{prefix}{number}.{name}": shape
            for number, spec in enumerate(chain)
            for name, shape in spec.shapes().items()
        },
        slot=lambda name: ParameterSlot(parameter_prefix + name.removeprefix(prefix)),
    )
