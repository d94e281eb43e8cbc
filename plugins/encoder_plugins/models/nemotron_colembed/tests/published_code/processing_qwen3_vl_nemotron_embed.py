"""Stands for the code that a published checkpoint brings: its processor."""

from typing import Any

from transformers import Qwen3VLProcessor


class Qwen3VLNemotronEmbedProcessor(Qwen3VLProcessor):  # type: ignore[misc]
    """Makes batches of queries, and of images with texts."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        video_processor: Any = None,
        q_max_length: int = 512,
        p_max_length: int = 4096,
        query_prefix: str = "query:",
        passage_prefix: str = "passage:",
        reserve_tokens_for_images: int = 100,
        **others: Any,
    ) -> None:
        super().__init__(image_processor, tokenizer, video_processor, **others)
        self.lengths = (q_max_length, p_max_length - reserve_tokens_for_images)
        self.prefixes = (query_prefix, passage_prefix)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render a conversation."""
        return self.tokenizer.apply_chat_template(conversation, **options)

    def process_queries(self, queries: list[str]) -> Any:
        """Return a batch of one query."""
        (query,) = queries
        return self._turn([{"type": "text", "text": f"Query: {self.prefixes[0]} {query}"}], self.lengths[0])

    def process_documents(self, documents: dict[str, list[Any]]) -> Any:
        """Return a batch of one image with a text."""
        ((image,), (text,)) = documents["image"], documents["text"]
        (grid,) = self.image_processor(images=[image], return_tensors="pt")["image_grid_thw"]
        tokens = int(grid.prod()) // self.image_processor.merge_size**2
        content = [{"type": "image"}, {"type": "text", "text": f"{self.prefixes[1]} {text}"}]
        return self._turn(content, self.lengths[1] - tokens, images=[image])

    def _turn(self, content: Any, longest: int, **images: Any) -> Any:
        turn = self.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return self(text=[turn], **images, truncation=True, max_length=longest, return_tensors="pt")
