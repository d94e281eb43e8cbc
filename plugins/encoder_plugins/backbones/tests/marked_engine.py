"""`python marked_engine.py FOLDER`: gives an engine requests with token marks, and prints how far its rows are off.

A process of its own, since the model runner (`v1`, `v2`) is chosen by the environment that vLLM is imported in. The models
return the rows of all tokens; what they are compared with are transformers' rows of each text alone.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from vllm.model_executor.layers.pooler.abstract import Pooler

from encoder_kernels.dispatch import INTERPRETED
from encoder_kernels.tests import interpreter
from encoder_plugins.backbones import plain_attention
from encoder_plugins.backbones.mark_channel import TokenMarksUpdate

COUNTS = [7, 12, 3, 9, 1, 20, 5, 16]
# by request: the texts, and how many tokens at the end of each are queries only
REQUESTS = [([0, 1, 2], 0), ([3], None), ([4], 0), ([5], 8), ([6, 7], 3), ([5], None), ([7, 0], 0)]


def sibling(name: str) -> Any:
    """Import a file beside this one; tests are no package."""
    spec = importlib.util.spec_from_file_location(f"backbones_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class RowsPooler(Pooler):  # type: ignore[misc]
    """Answers with the rows of all tokens."""

    def get_supported_tasks(self) -> set[str]:
        return {"token_embed"}

    def get_pooling_updates(self, task: str) -> Any:
        return TokenMarksUpdate()

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> list[torch.Tensor]:
        lengths = pooling_metadata.get_pooling_cursor().num_scheduled_tokens_cpu.tolist()
        return [rows.float().cpu().clone() for rows in torch.split(hidden_states, lengths)]


def register() -> None:
    """Register the test's models with vLLM."""
    from vllm import ModelRegistry

    from encoder_plugins.backbones import deberta_v2, deberta_v2_settings, modernbert, modernbert_settings
    from encoder_plugins.backbones.encoder_model import EncoderModel

    def model(encoder_class: Any, settings: Any) -> Any:
        class RowsModel(EncoderModel):
            query_only_tokens = True

            def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
                encoder = encoder_class(vllm_config=vllm_config, prefix="encoder")
                super().__init__(vllm_config=vllm_config, encoder=encoder, pooler=RowsPooler())

            def layout(self) -> Any:
                return settings.layout(self.config).under("", "encoder.")

        return RowsModel

    ModelRegistry.register_model("RowsDeberta", model(deberta_v2.DebertaV2Encoder, deberta_v2_settings))
    ModelRegistry.register_model("RowsModernBert", model(modernbert.ModernBertEncoder, modernbert_settings))


def check(name: str, folder: Path) -> dict[str, Any]:
    """Return how far each request's rows are from transformers', alone and in company."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from vllm import LLM, PoolingParams

    from encoder_plugins.backbones import token_marks

    models = sibling("test_separated_texts")
    reference, _, _ = models.MODELS[name]()
    sibling("conftest").randomize(reference)
    reference.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [{"deberta_v2": "RowsDeberta", "modernbert": "RowsModernBert"}[name]]
    (folder / "config.json").write_text(json.dumps(config))
    # vLLM wants a tokenizer for its own routes
    vocabulary = {f"token{number}": number for number in range(211)}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="token0"))
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="token0").save_pretrained(folder)
    generator = torch.Generator().manual_seed(11)
    texts = [torch.randint(1, 211, (count,), generator=generator) for count in COUNTS]
    prompts, parameters, expected = [], [], []
    for chosen, tail in REQUESTS:
        prompts.append({"prompt_token_ids": torch.cat([texts[number] for number in chosen]).tolist()})
        keys = [max(1, COUNTS[number] - (tail or 0)) for number in chosen]
        wire = token_marks.encode([COUNTS[number] for number in chosen], keys=keys)
        parameters.append(PoolingParams(task="token_embed", extra_kwargs=None if tail is None else wire))
        with torch.inference_mode():
            rows = [
                models.expected_rows(reference, texts[number], seen) for number, seen in zip(chosen, keys, strict=True)
            ]
        expected.append(torch.cat(rows))
    llm = LLM(
        str(folder),
        runner="pooling",
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        max_num_seqs=3,
        max_model_len=128,
    )

    def worst(numbers: list[int]) -> float:
        outputs = llm.encode(
            [prompts[number] for number in numbers],
            [parameters[number] for number in numbers],
            pooling_task="token_embed",
            use_tqdm=False,
        )
        found = [output.outputs.data for output in outputs]
        return max(float((rows - expected[number]).abs().max()) for rows, number in zip(found, numbers, strict=True))

    every = list(range(len(REQUESTS)))
    return {
        "runner": "v2" if llm.llm_engine.vllm_config.use_v2_model_runner else "v1",
        "alone": max(worst([number]) for number in every),
        "together": worst(every),
        "in another order": worst([5, 0, 3, 6, 1, 4, 2, 3, 0]),
        "without marks": worst([1, 5, 1]),
    }


def main() -> None:
    """Check the kinds of attention; print one JSON line for each."""
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    register()
    if INTERPRETED:
        interpreter.reduce_cost()
    for name in ("deberta_v2", "modernbert"):
        print(json.dumps({"model": name, **check(name, folder / name)}), flush=True)
    # as on a GPU: layers with a window have our kernel, those without have vLLM's
    with mock.patch.object(plain_attention, "current_platform", SimpleNamespace(is_cuda=lambda: True)):
        print(json.dumps({"model": "both attentions", **check("modernbert", folder / "both")}), flush=True)


if __name__ == "__main__":
    main()
