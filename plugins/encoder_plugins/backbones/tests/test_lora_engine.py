"""LoRA adapters on real vLLM: PEFT's own merged model gives what a request with its adapter gets, others are untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

# PEFT adds the product of the factors to the weights first, which rounds otherwise: up to 4e-5 on processors so far, in rows of size 1
CLOSE = 1e-4

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


BACKBONES = ("modernbert", "deberta", "deberta with projections of positions")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """What one process, with one engine after the other, found of each backbone."""
    command = [sys.executable, __file__, str(tmp_path_factory.mktemp("backbones"))]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"backbone"')]
    found = {line.pop("backbone"): line for line in lines}
    assert set(found) == set(BACKBONES), done.stderr[-4000:]
    return found


@pytest.mark.parametrize("backbone", BACKBONES)
def test_an_adapter_gives_the_rows_of_pefts_merged_model(
    backbone: str, results: dict[str, dict[str, float]], record_property: Any
) -> None:
    found = results[backbone]
    record_property("worst", found)
    # adapters that change nothing would show nothing
    assert found["adapters differ by"] > 0.1
    assert found["alone"] <= CLOSE
    assert found["mixed"] <= CLOSE


def built(backbone: str) -> tuple[Any, Any, list[list[str]]]:
    """Return a backbone's model of transformers, its class in the engine, and the layers that two adapters change."""
    from transformers import DebertaV2Config, DebertaV2Model, ModernBertConfig, ModernBertModel

    from encoder_plugins.backbones import deberta_v2, deberta_v2_settings, modernbert, modernbert_settings
    from encoder_plugins.backbones.adapter_tables import DebertaV2Adapters
    from encoder_plugins.backbones.encoder_model import EncoderModel
    from encoder_plugins.backbones.tests.marked_engine import RowsPooler

    sizes = {"vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    tokens = {name: 1 for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id")}
    shape = {**sizes, **tokens, "intermediate_size": 96, "max_position_embeddings": 128}
    encoder_class: Any
    settings: Any
    adapters: Any
    if backbone == "modernbert":
        base = ModernBertModel(ModernBertConfig(**shape, local_attention=32))
        encoder_class, settings, adapters = (
            modernbert.ModernBertEncoder,
            modernbert_settings,
            modernbert.ModernBertAdapters,
        )
        targets = [["Wqkv", "Wo", "Wi"], ["Wqkv"]]
    else:
        positions = {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["c2p", "p2c"]}
        more = {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0}
        base = DebertaV2Model(DebertaV2Config(**shape, **positions, **more, share_att_key=backbone == "deberta"))
        encoder_class, settings, adapters = deberta_v2.DebertaV2Encoder, deberta_v2_settings, DebertaV2Adapters
        # those that gliner2 changes in an encoder
        targets = [["query_proj", "key_proj", "value_proj", "dense"], ["key_proj"]]
        if backbone != "deberta":
            targets = [[*targets[0], "pos_key_proj", "pos_query_proj"], ["pos_query_proj"]]

    class RowsModel(EncoderModel, adapters):  # type: ignore[misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            encoder = encoder_class(vllm_config=vllm_config, prefix="encoder")
            super().__init__(vllm_config=vllm_config, encoder=encoder, pooler=RowsPooler())

        def layout(self) -> Any:
            return settings.layout(self.config).under("", "encoder.")

    return base.eval(), RowsModel, targets


def main(folder: Path, backbone: str) -> dict[str, float]:
    """Compare the base model and two adapters, one request at a time and in one batch."""
    import torch
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from vllm import ModelRegistry, PoolingParams
    from vllm.lora.request import LoRARequest

    from encoder_plugins.serving.tests import in_process

    torch.manual_seed(5)
    architecture = f"RowsModel{BACKBONES.index(backbone)}"
    base, served, targets_of = built(backbone)
    model = folder / "model"
    for parameter in base.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    base.save_pretrained(model)
    written = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(written | {"architectures": [architecture]}))
    vocabulary = {f"token{number}": number for number in range(211)}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="token0"))
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="token0").save_pretrained(model)

    texts = [torch.randint(1, 211, (count,)) for count in (9, 40, 3, 17)]
    expected: dict[str, list[torch.Tensor]] = {}
    adapters: dict[str, LoRARequest | None] = {"": None}

    def rows(of: Any) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [of(input_ids=ids[None]).last_hidden_state[0] for ids in texts]

    expected[""] = rows(base)
    for number, (name, rank, targets) in enumerate(zip(("all", "few"), (8, 4), targets_of, strict=True), 1):
        fresh = type(base).from_pretrained(model).eval()
        adapted = get_peft_model(fresh, LoraConfig(r=rank, lora_alpha=16, target_modules=targets))
        for key, parameter in adapted.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(parameter, std=0.2)
        adapted.save_pretrained(str(folder / name))
        adapters[name] = LoRARequest(name, number, str(folder / name))
        expected[name] = rows(adapted.merge_and_unload().eval())

    ModelRegistry.register_model(architecture, served)
    llm = in_process.start(
        model,
        dtype="float32",
        enable_lora=True,
        # one more than there are adapters: vLLM 0.32 on a CPU gives requests without an adapter the last slot, which must stay empty
        max_loras=3,
        max_lora_rank=8,
        enable_chunked_prefill=False,
        max_num_seqs=6,
        max_model_len=128,
    )

    def worst(requests: list[tuple[str, int]]) -> float:
        outputs = llm.encode(
            [{"prompt_token_ids": texts[number].tolist()} for _, number in requests],
            PoolingParams(task="token_embed"),
            lora_request=[adapters[name] for name, _ in requests],
            pooling_task="token_embed",
            use_tqdm=False,
        )
        return max(
            float((output.outputs.data - expected[name][number]).abs().max())
            for output, (name, number) in zip(outputs, requests, strict=True)
        )

    every = [(name, number) for number in range(len(texts)) for name in adapters]
    return {
        "adapters differ by": min(
            float((one - other).abs().max())
            for pair in (("", "all"), ("", "few"), ("all", "few"))
            for one, other in zip(*(expected[name] for name in pair), strict=True)
        ),
        "alone": max(worst([request]) for request in every),
        "mixed": worst(every),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in BACKBONES:
        line = json.dumps({"backbone": name, **main(Path(sys.argv[1]) / name.replace(" ", "-"), name)})
        sys.stdout.write(f"\n{line}\n")
