"""The checkpoint of GLiNER2's span models, as plain data: prep and the engine read it by this code. Standard library only."""

from __future__ import annotations

from encoder_plugins.backbones.checkpoint_layout import CheckpointLayout, ParameterSlot, Shape, join, linear, norm
from encoder_plugins.families.gliner2.config import Gliner2Config

# what precedes the names of the encoder's tensors in a GLiNER2 checkpoint
ENCODER = "encoder."
STEPS = 20
"""Rows of the table of positions, and classes of the head that predicts counts."""
INNER, LAYERS, HEADS = 128, 2, 4
"""Width, layers and heads of the transformer of count_lstm_v2."""
EXPERTS, EXPANSION = 4, 2
"""Experts of count_lstm_moe, and how many times wider than their input they are."""

_MARKERS = "span_rep.span_rep_layer"
_COUNT = "count_embed"


def layout(encoder: CheckpointLayout, size: int, config: Gliner2Config) -> CheckpointLayout:
    """Return the tensors of a whole checkpoint; the parameters are those of ``model.Gliner2SpanModel``.

    Args:
        encoder: The layout of the encoder's own checkpoint.
        size: Width of the encoder's rows.
        config: The checkpoint's own settings.
    """
    return join(encoder.under(ENCODER, "encoder."), head_layout(size, config).under("", "pooler.head."))


def head_layout(size: int, config: Gliner2Config) -> CheckpointLayout:
    """Return the tensors beside the encoder's; the parameters are those of ``head.Gliner2Head``."""
    shapes: dict[str, Shape] = {}
    slots: dict[str, ParameterSlot] = {}

    def add(tensors: dict[str, Shape], source: str, target: str, part: int | str | None = None) -> None:
        shapes.update(tensors)
        for name in tensors:
            kind = name.removeprefix(f"{source}.")
            # only a matrix over two inputs has columns of both; its bias belongs to the first
            where = 0 if part == "columns" and kind == "bias" else part
            slots[name] = ParameterSlot(f"{target}.{kind}", where)

    def add_linear(source: str, target: str, rows: int, columns: int, part: int | str | None = None) -> None:
        add(linear(source, rows, columns), source, target, part)

    # 0 and 3 are the linear layers of the library's Sequential(Linear, ReLU, Dropout, Linear)
    for half, name in enumerate(("project_start", "project_end")):
        add_linear(f"{_MARKERS}.{name}.0", "marker_in", 4 * size, size, half)
        add_linear(f"{_MARKERS}.{name}.3", "marker_out", size, 4 * size, half)
    add_linear(f"{_MARKERS}.out_project.0", "span_in", 4 * size, 2 * size, "columns")
    add_linear(f"{_MARKERS}.out_project.3", "span_out", size, 4 * size)
    for name, target, outputs in (("classifier", "classes", 1), ("count_pred", "counts", STEPS)):
        add_linear(f"{name}.0", f"{target}.inner", 2 * size, size)
        add_linear(f"{name}.2", f"{target}.outer", outputs, 2 * size)
    add({f"{_COUNT}.pos_embedding.weight": (STEPS, size)}, f"{_COUNT}.pos_embedding", "queries.steps")
    for source, target in (("ih", "input"), ("hh", "hidden")):
        for kind, shape in (("weight", (3 * size, size)), ("bias", (3 * size,))):
            name = f"{_COUNT}.gru.{kind}_{source}_l0"
            shapes[name], slots[name] = shape, ParameterSlot(f"queries.{target}.{kind}")
    if config.counting_layer == "count_lstm":
        add_linear(f"{_COUNT}.projector.0", "queries.projector.inner", 4 * size, 2 * size)
        add_linear(f"{_COUNT}.projector.2", "queries.projector.outer", size, 4 * size)
    elif config.counting_layer == "count_lstm_v2":
        across, base = f"{_COUNT}.transformer", "queries.projector"
        add_linear(f"{across}.in_projector", f"{base}.narrow", INNER, size)
        for layer in range(LAYERS):
            source, target = f"{across}.transformer.layers.{layer}", f"{base}.layers.{layer}"
            for kind, shape in (("weight", (3 * INNER, INNER)), ("bias", (3 * INNER,))):
                name = f"{source}.self_attn.in_proj_{kind}"
                shapes[name], slots[name] = shape, ParameterSlot(f"{target}.qkv.{kind}")
            add_linear(f"{source}.self_attn.out_proj", f"{target}.out", INNER, INNER)
            add_linear(f"{source}.linear1", f"{target}.inner", 2 * INNER, INNER)
            add_linear(f"{source}.linear2", f"{target}.outer", INNER, 2 * INNER)
            for number in (1, 2):
                add(norm(f"{source}.norm{number}", INNER), f"{source}.norm{number}", f"{target}.norm{number}")
        for number, (name, columns) in enumerate((("0", INNER + size), ("2", size), ("4", size))):
            add_linear(f"{across}.out_projector.{name}", f"{base}.wide.{number}", size, columns)
    else:
        inner = EXPANSION * size
        add_linear(f"{_COUNT}.router.0", "queries.projector.router.inner", size, size)
        add_linear(f"{_COUNT}.router.2", "queries.projector.router.outer", EXPERTS, size)
        experts: dict[str, Shape] = {
            "w1": (EXPERTS, size, inner),
            "b1": (EXPERTS, inner),
            "w2": (EXPERTS, inner, size),
            "b2": (EXPERTS, size),
        }
        for name, each in experts.items():
            shapes[f"{_COUNT}.{name}"] = each
            slots[f"{_COUNT}.{name}"] = ParameterSlot(f"queries.projector.{name}")
    return CheckpointLayout(shapes=shapes, slot=slots.__getitem__)
