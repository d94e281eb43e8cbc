"""Strict loading, with plain strings and small tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial

import pytest
import torch

with warnings.catch_warnings():
    # vLLM warns of itself when it is imported
    warnings.simplefilter("ignore")
    from encoder_plugins.backbones.checkpoint_layout import ByHead, CheckpointLayout, ParameterSlot, join
    from encoder_plugins.backbones.weight_loading import NAMED, WeightsError, load


class Model(torch.nn.Module):
    """Two parameters, one of which is filled in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.nn.Parameter(torch.zeros(3))
        self.halves = torch.nn.Parameter(torch.zeros(4))
        self.halves.weight_loader = self._half  # type: ignore[attr-defined]

    @staticmethod
    def _half(parameter: torch.nn.Parameter, tensor: torch.Tensor, part: int) -> None:
        parameter.data[2 * part : 2 * part + 2] = tensor


SLOTS = {"a": ParameterSlot("whole"), "left": ParameterSlot("halves", 0), "right": ParameterSlot("halves", 1)}
LAYOUT = CheckpointLayout(
    shapes={"a": (3,), "left": (2,), "right": (2,)},
    slot=SLOTS.__getitem__,
    aliases={"also_a": "a"},
    ignored={"counter": "a buffer that counts"},
)
GOOD = {"a": torch.ones(3), "left": torch.full((2,), 2.0), "right": torch.full((2,), 3.0)}


def failure(weights: Iterable[tuple[str, torch.Tensor]], layout: CheckpointLayout = LAYOUT) -> str:
    with pytest.raises(WeightsError) as caught:
        load(Model(), weights, layout)
    return str(caught.value)


def test_every_tensor_fills_its_slot() -> None:
    model = Model()
    assert load(model, GOOD.items(), LAYOUT) == {"whole", "halves"}
    assert model.whole.tolist() == [1, 1, 1]
    assert model.halves.tolist() == [2, 2, 3, 3]


def test_a_tensor_with_the_rows_of_each_head_together_fills_its_parts() -> None:
    model = Model()
    # two heads of one row; the layer's parts are 0 and 1
    layout = CheckpointLayout(shapes={"rows": (4,)}, slot=lambda name: ParameterSlot("halves", ByHead(2, (0, 1))))
    load(model, [("rows", torch.tensor([1.0, 2.0, 3.0, 4.0]))], layout)
    assert model.halves.tolist() == [1, 3, 2, 4]


def test_what_no_tensor_fills_is_zero_in_a_larger_model_too() -> None:
    model = Model()
    model.halves.data.fill_(7)
    part = CheckpointLayout(shapes={"left": (2,)}, slot=SLOTS.__getitem__, zeros={ParameterSlot("halves", 1): (2,)})
    load(torch.nn.ModuleDict({"inner": model}), [("left", torch.ones(2))], join(part.under("", "inner.")))
    assert model.halves.tolist() == [1, 1, 0, 0]


def test_ignored_tensors_may_be_there() -> None:
    load(Model(), [*GOOD.items(), ("counter", torch.zeros(9))], LAYOUT)


@pytest.mark.parametrize("order", [["a", "also_a"], ["also_a", "a"], ["also_a"]])
def test_a_tied_tensor_may_come_under_either_name_or_both(order: list[str]) -> None:
    model = Model()
    rest = [(name, tensor) for name, tensor in GOOD.items() if name != "a"]
    load(model, [*((name, torch.ones(3)) for name in order), *rest], LAYOUT)
    assert model.whole.tolist() == [1, 1, 1]


def test_tied_tensors_that_differ_are_named() -> None:
    assert "also_a" in failure([*GOOD.items(), ("also_a", torch.zeros(3))])


def test_all_that_is_wrong_is_named_at_once() -> None:
    message = failure(
        [
            ("left", GOOD["left"]),
            ("left", GOOD["left"]),
            ("right", torch.zeros(2, 2)),
            ("stranger", torch.zeros(1)),
        ]
    )
    assert "1 missing: a" in message
    assert "1 unexpected: stranger" in message
    assert "1 duplicated: left" in message
    assert "right [2, 2] instead of [2]" in message


def test_a_wrong_tensor_is_not_called_missing_as_well() -> None:
    assert "missing" not in failure([("a", torch.zeros(5)), ("left", GOOD["left"]), ("right", GOOD["right"])])


def test_many_names_are_counted() -> None:
    message = failure([*GOOD.items(), *((f"x{number}", torch.zeros(1)) for number in range(NAMED + 5))])
    assert f"{NAMED + 5} unexpected: x0, " in message
    assert message.endswith("and 5 more")


def test_a_layout_below_prefixes() -> None:
    below = LAYOUT.under("there.", "here.")
    assert set(below.shapes) == {"there.a", "there.left", "there.right"}
    assert below.slot("there.left") == ("here.halves", 0)
    assert below.aliases == {"there.also_a": "there.a"}
    assert set(below.ignored) == {"there.counter"}


def test_layouts_are_joined() -> None:
    both = join(LAYOUT.under("one.", "first."), LAYOUT.under("two.", "second."))
    assert both.slot("one.a") == ("first.whole", None)
    assert both.slot("two.right") == ("second.halves", 1)
    assert len(both.shapes) == 6


class Quantised(torch.nn.Module):
    """A weight of two parts with a scale for each, as vLLM's fp8 layers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Module()
        self.qkv.weight = torch.nn.Parameter(torch.zeros(4))
        self.qkv.weight_scale = torch.nn.Parameter(torch.zeros(2))
        self.qkv.weight.weight_loader = partial(fill_part, 2)  # type: ignore[attr-defined]
        self.qkv.weight_scale.weight_loader = partial(fill_part, 1)  # type: ignore[attr-defined]


def fill_part(width: int, parameter: torch.nn.Parameter, tensor: torch.Tensor, part: int) -> None:
    parameter.data[part * width : (part + 1) * width].copy_(tensor)


PARTS = CheckpointLayout(
    shapes={"q.weight": (2,), "k.weight": (2,)},
    slot=lambda name: ParameterSlot("qkv.weight", "qk".index(name[0])),
)
HALVES = [("q.weight", torch.ones(2)), ("k.weight", torch.full((2,), 2.0))]
SCALED = [("q.weight_scale", torch.tensor(3.0)), ("k.weight_scale", torch.tensor([4.0]))]


def test_scales_fill_the_slots_beside_their_weights() -> None:
    model = Quantised()
    assert load(model, [*HALVES, *SCALED], PARTS) == {"qkv.weight", "qkv.weight_scale"}
    assert model.qkv.weight_scale.tolist() == [3, 4]  # type: ignore[operator]
    assert model.qkv.weight.tolist() == [1, 1, 2, 2]  # type: ignore[operator]


def test_scales_that_are_missing_or_that_the_engine_does_not_use_are_named() -> None:
    with pytest.raises(WeightsError, match=r"1 missing: k\.weight_scale"):
        load(Quantised(), [*HALVES, SCALED[0]], PARTS)
    plain = Quantised()
    del plain.qkv.weight_scale
    with pytest.raises(WeightsError, match=r"2 unexpected: q\.weight_scale, k\.weight_scale; .* quantization_config"):
        load(plain, [*HALVES, *SCALED], PARTS)


def test_a_weight_that_the_quantisation_method_has_no_parameter_for_is_named() -> None:
    packed = Quantised()
    del packed.qkv.weight
    with pytest.raises(
        WeightsError, match=r"2 without a parameter under this quantisation method: q\.weight, k\.weight"
    ):
        load(packed, HALVES, PARTS)
