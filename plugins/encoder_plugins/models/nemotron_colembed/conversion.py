"""Convert a Nemotron ColEmbed checkpoint into the model folder of an artifact: the published weights, and configuration that vLLM reads.

Imports torch and transformers, and no code of the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.config import RetrievalConfig, Side
from encoder_plugins.families.vision import qwen3_vl
from encoder_plugins.families.vision import qwen3_vl_conversion as conversion
from encoder_plugins.families.vision.config import VisualConfig
from encoder_plugins.models.nemotron_colembed.published import Processing

ARCHITECTURE = "VisualNemotronModel"
# stands for a text in a rendered turn; no template has it
MARK = "\ufdd0"


def convert(settings: qwen3_vl.Settings, processing: Processing, folder: Path, target: Path) -> None:
    """Write the model folder of an artifact.

    Args:
        settings: What the checkpoint says.
        processing: How its processor makes prompts.
        folder: The checkpoint, its weights as safetensors.
        target: The folder to write; it exists and is empty.

    Raises:
        SourceFileNotFound: Something is missing.
        Unsupported: Something is not served, or the pieces do not belong together.
    """
    conversion.check_weights(settings, folder, {}, of="Nemotron ColEmbed")
    tokenizer, own = conversion.write_tokenizer(folder, target)
    query, suffix = _turn(tokenizer, processing.query(MARK), image=False)
    document, behind = _turn(tokenizer, processing.passage(MARK), image=False)
    caption, last = _turn(tokenizer, processing.passage(MARK), image=True)
    if suffix != behind or suffix != last:
        raise Unsupported("the chat template ends the turns of queries, texts and images differently")
    reserved = conversion.reserved(settings, tokenizer, own)
    ending = own.encode(suffix).ids
    if not ending or ending[0] not in reserved:
        raise Unsupported("the chat template ends a turn with no token of its own")
    served = RetrievalConfig(
        query=Side(prompt=query, most_tokens=processing.query_tokens, skips=False),
        document=Side(prompt=document, most_tokens=processing.document_tokens, skips=False),
        expansion=None,
        skiplist=(),
        projection=(),
        normalize=True,
        similarity="maxsim",
        width=settings.width,
    )
    images = VisualConfig(
        image_prompt=conversion.image_prompt(settings, own, caption + suffix),
        image_token=settings.image_token,
        query_suffix=tuple(ending),
        document_suffix=tuple(ending),
        captions=caption,
        most_tokens=processing.document_tokens,
        reserved=reserved,
        bounds=settings.bounds,
    )
    conversion.write_model(
        settings,
        folder,
        target,
        served,
        images,
        architectures=[ARCHITECTURE],
        # vLLM's flags go by the first, and its layers by the second
        is_causal=False,
        text_config={"is_causal": False},
    )


def _turn(tokenizer: Any, content: str, *, image: bool) -> tuple[str, str]:
    """Return what a turn has before and behind the text that ``MARK`` stands for."""
    parts = [{"type": "image"}] * image + [{"type": "text", "text": content}]
    try:
        turn: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:
        # a template is a program
        raise Unsupported(f"the chat template cannot be rendered: {type(error).__name__}: {error}"[:500]) from error
    if turn.count(MARK) != 1:
        raise Unsupported("the chat template does not repeat the text of a turn as it is")
    before, _, behind = turn.partition(MARK)
    return before, behind
