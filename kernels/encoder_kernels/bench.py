"""Every benchmark in one run, as markdown: ``python -m encoder_kernels.bench [--only OPERATION] [--without-compile] [FILE]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from encoder_kernels import measure
from encoder_kernels.bidirectional_lstm import bench as bidirectional_lstm
from encoder_kernels.disentangled_attention import bench as disentangled_attention
from encoder_kernels.gated_linear_unit import bench as gated_linear_unit
from encoder_kernels.gelu import bench as gelu
from encoder_kernels.relative_bias_attention import bench as relative_bias_attention
from encoder_kernels.rotary import bench as rotary
from encoder_kernels.span_scores import bench as span_scores
from encoder_kernels.token_scores import bench as token_scores

EVERY = {
    "gelu": gelu,
    "gated_linear_unit": gated_linear_unit,
    "rotary": rotary,
    "relative_bias_attention": relative_bias_attention,
    "disentangled_attention": disentangled_attention,
    "bidirectional_lstm": bidirectional_lstm,
    "span_scores": span_scores,
    "token_scores": token_scores,
}


def main() -> None:
    """Print the tables, and write them to the file that is named."""
    parser = argparse.ArgumentParser(description="Measure the kernels on this machine's GPU.")
    parser.add_argument("file", nargs="?", type=Path, help="write the tables to this file, too")
    parser.add_argument("--only", choices=list(EVERY), help="measure one operation")
    parser.add_argument("--without-compile", action="store_true", help="leave out references through torch.compile")
    arguments = parser.parse_args()
    measure.compile_references = not arguments.without_compile
    reports = [module.report for name, module in EVERY.items() if arguments.only in (None, name)]
    text = "\n".join([measure.about() + "\n", *(report() for report in reports)])
    print(text)
    if arguments.file is not None:
        arguments.file.write_text(text)


if __name__ == "__main__":
    main()
