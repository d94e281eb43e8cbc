"""Record what the mathematics of the published code gives: one text or page at a time on the CPU, in float32 and in bfloat16.

The published class is Python code of the checkpoint. Without permission to run it, its model is transformers' own Qwen3-VL with
attention in both directions and without the last norm; with permission, it is the checkpoint's. Runs in the reference environment only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import Qwen2TokenizerFast, Qwen2VLImageProcessorFast, Qwen3VLConfig, Qwen3VLModel, Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from encoder_plugins.artifact.reference import Case, Recording
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision import recording
from encoder_plugins.models.nemotron_colembed.published import read, read_processing
from encoder_plugins.prep.checkpoint_json import read_object


class NemotronRecorder:
    """The recorder of Nemotron ColEmbed."""

    def record(
        self,
        checkpoint: Path,
        auxiliary: Mapping[str, Path],
        cases: Sequence[Case],
        *,
        trust_remote_code: bool = False,
    ) -> Recording:
        """Load the checkpoint, and compute rows or scores of every case, as ``recording.record`` describes."""
        del auxiliary
        own = "the mathematics of the published code, on transformers' own Qwen3-VL"
        return recording.record(
            checkpoint,
            lambda: PublishedCode(checkpoint) if trust_remote_code else Mathematics(checkpoint),
            cases,
            library="the checkpoint's own code" if trust_remote_code else own,
            of=("transformers", "tokenizers", "torch", "numpy"),
        )


RECORDER = NemotronRecorder()
# tokens of a turn before an image, and more than enough
_BEFORE_IMAGE = 16


class _Rows:
    """What both references share; ``checkpoint`` is the folder of the published files."""

    def __init__(self, checkpoint: Path) -> None:
        self._bounds = read(checkpoint).bounds
        self._processing = read_processing(checkpoint)

    @contextmanager
    def _room(self, image: Image.Image | None) -> Iterator[None]:
        """Refuse an image for which the processor raised since it would have cut it; raises Unsupported."""
        try:
            yield
        except Exception as error:
            most = self._processing.document_tokens
            if image is None or _BEFORE_IMAGE + 2 * (tokens := self._bounds.tokens(*image.size)) <= most:
                raise
            raise Unsupported(
                f"the image of {image.width} × {image.height} pixels has {tokens} tokens, which count twice; this model takes"
                f" {most} with its prompt (p_max_length less reserve_tokens_for_images)"
            ) from error

    def score(self, query: torch.Tensor, document: torch.Tensor) -> float:
        """Return the score of a document from both rows: the sum over the query's of the largest product."""
        return float((query.float() @ document.float().T).amax(1).sum())


class Mathematics(_Rows):
    """What the published code computes, by transformers' own classes.

    Raises:
        Unsupported: They cannot load it, or would leave out a part of it.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        values = {**read_object(checkpoint, "config.json"), "model_type": "qwen3_vl"}
        values.pop("auto_map", None)
        with recording.loading("transformers"):
            self._model, report = Qwen3VLModel.from_pretrained(
                checkpoint,
                config=Qwen3VLConfig.from_dict(values),
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
            )
            # each part by its class: the automatic ones would go to the checkpoint's code
            self._processor = Qwen3VLProcessor(
                image_processor=Qwen2VLImageProcessorFast.from_pretrained(checkpoint, local_files_only=True),
                tokenizer=Qwen2TokenizerFast.from_pretrained(checkpoint, local_files_only=True),
                video_processor=Qwen3VLVideoProcessor(),
            )
        recording.check_loaded(report, "transformers")
        self._model = self._model.float().eval()
        # the published code leaves it out: products with rows are of the last layer's sums
        self._model.language_model.norm = torch.nn.Identity()

    def bfloat16(self) -> None:
        """Compute in bfloat16 from now on."""
        self._model.bfloat16()

    def query(self, text: str) -> torch.Tensor:
        """Return the rows of a query, `[rows, dimensions]`."""
        return self._rows(self.query_inputs(text))

    def document(self, text: str | None, image: Image.Image | None) -> torch.Tensor:
        """Return the rows of a text, of an image, or of an image with a text, `[rows, dimensions]`."""
        with self._room(image):
            inputs = self.document_inputs(text, image)
        return self._rows(inputs)

    def query_inputs(self, text: str) -> Any:
        """Return what the model gets of a query."""
        content = [{"type": "text", "text": self._processing.query(text)}]
        return self._inputs(content, None, self._processing.query_tokens)

    def document_inputs(self, text: str | None, image: Image.Image | None) -> Any:
        """Return what the model gets of a document."""
        content: list[dict[str, Any]] = [{"type": "text", "text": self._processing.passage(text or "")}]
        longest = self._processing.document_tokens
        if image is not None:
            content.insert(0, {"type": "image", "image": image})
            sides = self._processor.image_processor(images=[image], return_tensors="pt")["image_grid_thw"][0]
            longest -= int(sides.prod()) // self._processor.image_processor.merge_size**2
        return self._inputs(content, image, longest)

    def _inputs(self, content: Sequence[Mapping[str, Any]], image: Image.Image | None, longest: int) -> Any:
        turn = self._processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        images = {} if image is None else {"images": [image.convert("RGB")]}
        return self._processor(text=[turn], **images, truncation=True, max_length=longest, return_tensors="pt")

    def _rows(self, inputs: Any) -> torch.Tensor:
        ids, positions = inputs["input_ids"], None
        model = self._model
        with torch.inference_mode():
            if "image_grid_thw" in inputs:
                positions, _ = model.get_rope_index(
                    ids, mm_token_type_ids=inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
                )
            # every token attends to every token: a mask of this form is taken as it is
            mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1], dtype=model.dtype)
            hidden = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                pixel_values=inputs.get("pixel_values"),
                image_grid_thw=inputs.get("image_grid_thw"),
                use_cache=False,
            ).last_hidden_state[0]
            rows: torch.Tensor = torch.nn.functional.normalize(hidden, dim=-1)
        return rows


class PublishedCode(_Rows):
    """The checkpoint's own class, run with permission.

    Raises:
        Unsupported: It cannot be loaded.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        with recording.loading("the checkpoint's code"):
            self._model = transformers.AutoModel.from_pretrained(
                checkpoint,
                trust_remote_code=True,
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
            ).eval()
            self._processor = transformers.AutoProcessor.from_pretrained(
                checkpoint, trust_remote_code=True, local_files_only=True
            )

    def bfloat16(self) -> None:
        """Compute in bfloat16 from now on."""
        self._model.bfloat16()

    def query(self, text: str) -> torch.Tensor:
        """Return the rows of a query, `[rows, dimensions]`."""
        return self._rows(self._model.process_queries([text]))

    def document(self, text: str | None, image: Image.Image | None) -> torch.Tensor:
        """Return the rows of a text, of an image, or of an image with a text, `[rows, dimensions]`."""
        if image is not None:
            pages = {"image": [image.convert("RGB")], "text": [text or ""]}
            with self._room(image):
                inputs = self._model.process_documents(pages)
            return self._rows(inputs)
        # the published code takes images only: its own parts, for a turn without one
        content = [{"type": "text", "text": self._processing.passage(text or "")}]
        turn = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        longest = self._processing.document_tokens
        return self._rows(self._processor(text=[turn], truncation=True, max_length=longest, return_tensors="pt"))

    def _rows(self, batch: Any) -> torch.Tensor:
        with torch.inference_mode():
            hidden = self._model(**batch).last_hidden_state * batch["attention_mask"].unsqueeze(-1)
            rows: torch.Tensor = torch.nn.functional.normalize(hidden, dim=-1)[0]
        return rows
