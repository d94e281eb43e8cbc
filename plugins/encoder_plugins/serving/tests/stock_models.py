"""`python stock_models.py FOLDER`: runs stock checkpoints of the encoders that we have classes for, and prints what vLLM answers.

A process of its own, since vLLM loads plugins once, as ``VLLM_PLUGINS`` says. Where ours is loaded, every model class of ours is
imported before the first stock model, so that whatever an import changed would be seen.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

PROMPTS = [[2, 7, 9, 3], [2, *range(10, 50), 3], [2, 5, 3]]
_SHAPE = {"vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def build(folder: Path) -> None:
    """Write the checkpoints."""
    modern = transformers.ModernBertConfig(
        **_SHAPE, **_IDS, cls_token_id=2, sep_token_id=3, num_hidden_layers=3, local_attention=8
    )
    gemma = transformers.Gemma3TextConfig(
        **_SHAPE, **_IDS, num_hidden_layers=6, num_key_value_heads=1, head_dim=32, sliding_window=8
    )
    lfm2 = transformers.Lfm2Config(
        **_SHAPE,
        **_IDS,
        num_hidden_layers=3,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention", "conv"],
        conv_dim=64,
        block_dim=64,
        block_ff_dim=96,
    )
    for name, kind, config in (
        ("modernbert", transformers.ModernBertModel, modern),
        ("gemma3", transformers.Gemma3TextModel, gemma),
        ("lfm2", transformers.Lfm2ForCausalLM, lfm2),
    ):
        torch.manual_seed(5)
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(folder / name)
        # vLLM loads one, though prompts are tokens here
        words = Tokenizer(WordLevel({f"w{number}": number for number in range(_SHAPE["vocab_size"])}, unk_token="w1"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder / name)


def build_visual(folder: Path, published: Path) -> None:
    """Write a stock Qwen3-VL, which generates text, with the backbone of a published ColQwen3."""
    target = folder / "qwen3_vl"
    shutil.copytree(published, target)
    tensors = {
        f"model.{name}": value
        for name, value in load_file(target / "model.safetensors").items()
        if not name.startswith("custom_text_proj.")
    }
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}
    (target / "config.json").write_text(json.dumps(config))


def build_tiled(folder: Path, published: Path) -> None:
    """Write a stock LFM2-VL, which generates text, with the backbone of a published ColLFM2 that has its base's configuration."""
    target = folder / "lfm2_vl"
    shutil.copytree(published, target)
    tensors = load_file(target / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith("custom_text_proj.")}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["Lfm2VlForConditionalGeneration"], "model_type": "lfm2_vl"}
    width = config["text_config"]["hidden_size"]
    config["text_config"] |= {"architectures": ["Lfm2ForCausalLM"], "conv_dim": width, "block_dim": width}
    (target / "config.json").write_text(json.dumps(config))


def loaded(folder: Path, **options: Any) -> Any:
    from vllm import LLM

    settings = {"max_model_len": 128, "max_num_batched_tokens": 512, **options}
    return LLM(str(folder), dtype="float32", enforce_eager=True, gpu_memory_utilization=0.2, **settings)


def vectors(folder: Path) -> list[list[float]]:
    """Return the vectors of an encoder."""
    found = loaded(folder, runner="pooling").embed([{"prompt_token_ids": ids} for ids in PROMPTS], use_tqdm=False)
    return [output.outputs.embedding for output in found]


def continued(folder: Path) -> list[list[dict[str, float]]]:
    """Return the likeliest tokens behind each prompt, with their log-probabilities."""
    # with vLLM's own kernel, rotations are read out of bounds in this mode on a CPU
    llm = loaded(folder, compilation_config={"custom_ops": ["all", "-rotary_embedding"]})
    return _continued(llm, [{"prompt_token_ids": ids} for ids in PROMPTS])


def described(folder: Path) -> list[list[dict[str, float]]]:
    """Return the same behind images, and behind a text."""
    llm = loaded(folder, max_model_len=512, limit_mm_per_prompt={"image": 1, "video": 0})
    config = llm.model_config.hf_config
    return _described(
        llm, [5, config.vision_start_token_id, config.image_token_id, config.vision_end_token_id, 7, 8, 9]
    )


def described_in_tiles(folder: Path) -> list[list[dict[str, float]]]:
    """Return the same of a model that cuts images into tiles."""
    # with vLLM's own kernel, rotations are read out of bounds in this mode on a CPU
    options = {"custom_ops": ["all", "-rotary_embedding"]}
    llm = loaded(folder, max_model_len=512, limit_mm_per_prompt={"image": 1}, compilation_config=options)
    return _described(llm, [2, llm.model_config.hf_config.image_token_id, 110, 111, 112])


def _described(llm: Any, ids: list[int]) -> list[list[dict[str, float]]]:
    from PIL import Image

    images = [Image.radial_gradient("L").convert("RGB"), Image.linear_gradient("L").convert("RGB").resize((500, 300))]
    prompts: list[Any] = [{"prompt_token_ids": ids, "multi_modal_data": {"image": image}} for image in images]
    return _continued(llm, [*prompts, {"prompt_token_ids": PROMPTS[0]}])


def _continued(llm: Any, prompts: list[Any]) -> list[list[dict[str, float]]]:
    from vllm import SamplingParams

    parameters = SamplingParams(temperature=0, max_tokens=3, logprobs=5, detokenize=False)
    found = llm.generate(prompts, parameters, use_tqdm=False)
    return [
        [{str(token): each.logprob for token, each in step.items()} for step in output.outputs[0].logprobs]
        for output in found
    ]


def main() -> None:
    """Print the classes that the checkpoints have, and what they answer."""
    from vllm import ModelRegistry
    from vllm.plugins import load_general_plugins

    folder = Path(sys.argv[1])
    load_general_plugins()
    known = set(ModelRegistry.get_supported_archs())
    ours = []
    if os.environ["VLLM_PLUGINS"]:
        from encoder_plugins import catalog
        from encoder_plugins.plugin import resolve

        for plugin in catalog.plugins().values():
            for architecture, model in plugin.architectures.items():
                assert architecture in known
                ours.append(resolve(model).__name__)
    answers: dict[str, Any] = {}
    for name, run in (
        ("modernbert", vectors),
        ("gemma3", vectors),
        ("lfm2", continued),
        ("qwen3_vl", described),
        ("lfm2_vl", described_in_tiles),
    ):
        answers[name] = run(folder / name)
        gc.collect()
    print(json.dumps({"ours": ours, "answers": answers}))


if __name__ == "__main__":
    main()
