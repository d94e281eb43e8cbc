# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The recurrence of a bidirectional LSTM in Triton: all steps of both directions in one launch.

A block of sequences in one direction belongs to a group of programs. Each program of it has some of the hidden units: its rows of U stay
on the chip, and its cells in registers. A step needs the other programs' states of the step before, so that they count each other's steps
in memory. Programs wait only for others of their group, whose numbers are next to theirs: the GPU starts programs in order, so a group that
has begun can always end, however many groups there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from encoder_kernels import dispatch


@triton.jit
def _tanh(x):
    # exp of a negative number never overflows
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def _sigmoid(x):
    return 0.5 + 0.5 * _tanh(0.5 * x)


# the two lists come as parts of one copy, wherever in it: aligned or not, it must be the same compiled kernel
@triton.jit(do_not_specialize=["sequences"], do_not_specialize_on_alignment=["offsets", "order"])
def lstm_kernel(
    gates,
    weight,
    out,
    offsets,
    order,
    arrived,
    gates_row,
    out_row,
    sequences,
    HIDDEN: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_U: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Run one program's units of one block of sequences in one direction through all steps."""
    direction = tl.program_id(1)
    block = tl.program_id(2)
    units = tl.program_id(0) * BLOCK_U + tl.arange(0, BLOCK_U)
    inner = tl.arange(0, BLOCK_H)
    places = block * BLOCK_S + tl.arange(0, BLOCK_S)
    inside = places < sequences
    chosen = tl.load(order + places, mask=inside, other=0)
    first = tl.load(offsets + chosen).to(tl.int64)
    length = tl.where(inside, tl.load(offsets + chosen + 1) - first.to(tl.int32), 0)
    longest = tl.max(length, 0)

    # U's rows of these units, one block of hidden units to a gate, as columns
    rows = weight + direction * 4 * HIDDEN * HIDDEN + units[None, :] * HIDDEN + inner[:, None]
    there = (units < HIDDEN)[None, :] & (inner < HIDDEN)[:, None]
    weight_in = tl.load(rows, mask=there, other=0.0)
    weight_forget = tl.load(rows + HIDDEN * HIDDEN, mask=there, other=0.0)
    weight_cell = tl.load(rows + 2 * HIDDEN * HIDDEN, mask=there, other=0.0)
    weight_out = tl.load(rows + 3 * HIDDEN * HIDDEN, mask=there, other=0.0)

    gates += direction * 4 * HIDDEN + units[None, :]
    out += direction * HIDDEN
    counter = arrived + block * 2 + direction
    forward = direction == 0
    cell = tl.zeros([BLOCK_S, BLOCK_U], tl.float32)
    for step in range(0, longest):
        alive = step < length
        row = first + tl.where(forward, step, length - 1 - step)
        mine = alive[:, None] & (units < HIDDEN)[None, :]
        given = gates + row[:, None] * gates_row
        gate_in = tl.load(given, mask=mine, other=0.0).to(tl.float32)
        gate_forget = tl.load(given + HIDDEN, mask=mine, other=0.0).to(tl.float32)
        gate_cell = tl.load(given + 2 * HIDDEN, mask=mine, other=0.0).to(tl.float32)
        gate_out = tl.load(given + 3 * HIDDEN, mask=mine, other=0.0).to(tl.float32)
        if PARTS > 1:
            while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < PARTS * step:
                pass
        before = tl.where(forward, row - 1, row + 1)
        known = (alive & (step > 0))[:, None] & (inner < HIDDEN)[None, :]
        # not from the first cache: other processors wrote it
        state = tl.load(out + before[:, None] * out_row + inner[None, :], mask=known, other=0.0, cache_modifier=".cg")
        gate_in = tl.dot(state, weight_in, gate_in, input_precision=PRECISION)
        gate_forget = tl.dot(state, weight_forget, gate_forget, input_precision=PRECISION)
        gate_cell = tl.dot(state, weight_cell, gate_cell, input_precision=PRECISION)
        gate_out = tl.dot(state, weight_out, gate_out, input_precision=PRECISION)
        cell = _sigmoid(gate_forget) * cell + _sigmoid(gate_in) * _tanh(gate_cell)
        result = _sigmoid(gate_out) * _tanh(cell)
        tl.store(out + row[:, None] * out_row + units[None, :], result.to(out.dtype.element_ty), mask=mine)
        # every thread's part is written before one of them counts
        tl.debug_barrier()
        if PARTS > 1:
            tl.atomic_add(counter, 1, sem="release", scope="gpu")


def settings(dtype: torch.dtype, sequences: int, hidden: int, shared: int, multiprocessors: int) -> dict[str, int]:
    """Return the launch settings: chosen on an H200, and others where these would not fit.

    Args:
        dtype: The inputs' type.
        sequences: How many there are.
        hidden: Units of one direction.
        shared: Bytes of shared memory of a multiprocessor.
        multiprocessors: How many there are.

    Raises:
        RuntimeError: The programs of a group would not run at the same time, and some would wait for others that never start.
    """
    blocks = [(16, 32), (16, 16)]
    if dtype == torch.float32:
        blocks = [(16, 16), (16, 8)]
    elif sequences > 128:
        # these fill the GPU: then larger blocks are worth their longer steps
        blocks = [(32, 16), *blocks]
    # a program keeps its units' part of U there, and the states of its sequences
    row = _padded(hidden) * dtype.itemsize
    for some, units in blocks:
        if row * (4 * units + some) <= shared - 1024 and triton.cdiv(hidden, units) <= multiprocessors:
            return {"BLOCK_S": some, "BLOCK_U": units, "num_warps": 4}
    raise RuntimeError(
        f"an LSTM of {hidden} units in {dtype} does not fit into a GPU of {multiprocessors} multiprocessors with {shared} bytes of shared memory each"
    )


def _padded(hidden: int) -> int:
    return max(16, int(triton.next_power_of_2(hidden)))


def launch(
    words: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias: torch.Tensor,
    offsets: torch.Tensor,
    order: torch.Tensor,
    chosen: dict[str, int] | None = None,
) -> torch.Tensor:
    """Return `[words, 2 * hidden]`; arguments as in ``bidirectional_lstm``, and the launch settings when they are not to be the usual ones."""
    count, hidden, sequences = words.shape[0], weight_hidden.shape[2], order.shape[0]
    out = torch.empty((count, 2 * hidden), dtype=words.dtype, device=words.device)
    if not (count and sequences):
        return out
    gates = torch.addmm(bias.flatten(), words, weight_input.flatten(0, 1).t())  # [words, 2 * 4 * hidden]
    block_h = _padded(hidden)
    if dispatch.INTERPRETED:
        # the interpreter runs one program after the other: none can wait for the next
        config = {"BLOCK_S": 16, "BLOCK_U": block_h}
    else:
        config = dict(chosen or settings(words.dtype, sequences, hidden, *dispatch.multiprocessors(words.device)))
        config["BLOCK_U"] = min(config["BLOCK_U"], block_h)
    parts = triton.cdiv(hidden, config["BLOCK_U"])
    blocks = triton.cdiv(sequences, config["BLOCK_S"])
    arrived = torch.zeros(blocks * 2, dtype=torch.int32, device=words.device)
    lstm_kernel[(parts, 2, blocks)](
        gates,
        weight_hidden,
        out,
        offsets,
        order,
        arrived,
        gates.stride(0),
        out.stride(0),
        sequences,
        HIDDEN=hidden,
        BLOCK_H=block_h,
        PARTS=parts,
        PRECISION="ieee" if words.dtype == torch.float32 else "tf32",
        **config,
    )
    return out
