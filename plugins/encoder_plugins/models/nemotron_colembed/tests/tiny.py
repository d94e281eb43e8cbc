"""A tiny Nemotron ColEmbed checkpoint with random weights, saved with transformers as the published files are.

``save`` runs in the reference environment; ``build`` is for everybody else.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import transformers

NAME, WIDTH = "nemotron-colembed-tiny", 160
PROCESSOR = "Qwen3VLNemotronEmbedProcessor"
# of queries, and of documents, with what is kept free beside the tokens of images
QUERY_TOKENS, DOCUMENT_TOKENS, RESERVED = 64, 800, 100
# the part of Qwen3-VL's own that turns of texts and images use
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def build(folder: Path) -> Path:
    """Write the checkpoint below ``folder``, and return where it is."""
    from encoder_checkpoints.original import built

    cached = built("sauerkrautlm_colpali", "encoder_plugins.models.nemotron_colembed.tests.tiny:save")
    return Path(shutil.copytree(cached / NAME, folder / NAME))


def save(folder: Path) -> None:
    """Save the checkpoint below ``folder``."""
    import transformers

    from encoder_checkpoints import qwen3_vl as parts

    saved = folder / NAME
    saved.mkdir(parents=True)
    tokenizer = parts.tokenizer(padding_side="right", chat_template=TEMPLATE)
    tokenizer.save_pretrained(saved)
    model = transformers.Qwen3VLForConditionalGeneration(parts.config(tokenizer, WIDTH, tied=False))
    parts.draw(model, 7)
    model.save_pretrained(saved)
    write_files(saved, model.config)


def write_files(
    folder: Path,
    config: transformers.Qwen3VLConfig,
    *,
    document_tokens: int = DOCUMENT_TOKENS,
    **pixels: int,
) -> None:
    """Write the configuration of a model and of its processors as published; ``pixels`` are bounds of an image's size."""
    from encoder_checkpoints import qwen3_vl as parts

    classes = "modeling_qwen3_vl_nemotron_embed.Qwen3VLNemotronEmbed"
    published = {
        **config.to_dict(),
        "architectures": ["Qwen3VLNemotronEmbedModel"],
        "model_type": "qwen3_vl_nemotron_embed",
        "pooling": "colbert",
        "auto_map": {"AutoConfig": f"{classes}Config", "AutoModel": f"{classes}Model"},
    }
    parts.write(folder / "config.json", published)
    parts.write_processors(folder, PROCESSOR, **pixels)
    lengths = {
        "q_max_length": QUERY_TOKENS,
        "p_max_length": document_tokens,
        "query_prefix": "query:",
        "passage_prefix": "passage:",
        "reserve_tokens_for_images": RESERVED,
    }
    code = {"AutoProcessor": f"processing_qwen3_vl_nemotron_embed.{PROCESSOR}"}
    parts.write(folder / "processor_config.json", {"processor_class": PROCESSOR, "auto_map": code, **lengths})
