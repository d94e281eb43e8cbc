"""Every benchmark in one run, as markdown: ``python -m encoder_kernels.bench [FILE]``."""

from __future__ import annotations

import sys
from pathlib import Path

from encoder_kernels import measure
from encoder_kernels.bidirectional_lstm import bench as bidirectional_lstm
from encoder_kernels.disentangled_attention import bench as disentangled_attention
from encoder_kernels.gated_linear_unit import bench as gated_linear_unit
from encoder_kernels.relative_bias_attention import bench as relative_bias_attention
from encoder_kernels.rotary import bench as rotary
from encoder_kernels.span_scores import bench as span_scores

EVERY = (
    gated_linear_unit,
    rotary,
    relative_bias_attention,
    disentangled_attention,
    bidirectional_lstm,
    span_scores,
)


def main() -> None:
    """Print the tables, and write them to the file that is named."""
    text = "\n".join([measure.about() + "\n", *(module.report() for module in EVERY)])
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
