"""What a published Nemotron ColEmbed checkpoint says in its files. Neither torch nor vLLM is imported: prep and the recorder read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder_plugins.errors import Unsupported
from encoder_plugins.families.vision import qwen3_vl
from encoder_plugins.families.vision.published import CONFIG, PROCESSOR
from encoder_plugins.prep.checkpoint_json import integer, read_object, refusal, shown

ARCHITECTURES, MODEL_TYPES = ("Qwen3VLNemotronEmbedModel",), ("qwen3_vl_nemotron_embed",)
# on SigLIP and Llama, with another processor
LLAMA = "llama_nemotron_vl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """How prompts are made: the fields of the published processor's class, with its defaults.

    Attributes:
        query_prefix: What marks a query.
        passage_prefix: What marks a document.
        query_tokens: Tokens of a query, the turn around it included; what is behind is cut.
        document_tokens: Tokens of a document, where those of its image count twice; what is behind is cut.
    """

    query_prefix: str
    passage_prefix: str
    query_tokens: int
    document_tokens: int

    def query(self, text: str) -> str:
        """Return the content of a query's turn."""
        return f"Query: {self.query_prefix} {text}" if self.query_prefix else f"Query: {text}"

    def passage(self, text: str) -> str:
        """Return the content of a document's turn, beside its image."""
        return f"{self.passage_prefix} {text}" if self.passage_prefix else text


def read(folder: Path) -> qwen3_vl.Settings:
    """Read and check the configuration of a published checkpoint.

    Raises:
        Unsupported: It needs something that is not served; the message names file and field.
        SourceFileNotFound: A file of the format is missing.
    """
    config = read_object(folder, CONFIG)
    if config.get("model_type") == LLAMA:
        raise Unsupported(
            f"{CONFIG}: model_type is {LLAMA}: Nemotron ColEmbed on Llama is another model; none is served"
        )
    settings = qwen3_vl.settings(folder, config, architectures=ARCHITECTURES, model_types=MODEL_TYPES)
    if config.get("pooling", "colbert") != "colbert":
        raise refusal(CONFIG, "pooling", config["pooling"], ("colbert",))
    return settings


def read_processing(folder: Path) -> Processing:
    """Read the fields of a published checkpoint's processor.

    Raises:
        Unsupported: One has no value that its class could use.
    """
    where = PROCESSOR
    values = read_object(folder, where) if (folder / where).is_file() else {}
    longest = integer(where, values, "p_max_length", 4096)
    free = integer(where, values, "reserve_tokens_for_images", 100, least=0)
    if longest <= free:
        raise Unsupported(f"{where}: p_max_length is {longest}, and reserve_tokens_for_images {free}")
    return Processing(
        query_prefix=_prefix(where, values, "query_prefix", "query:"),
        passage_prefix=_prefix(where, values, "passage_prefix", "passage:"),
        query_tokens=integer(where, values, "q_max_length", 512),
        document_tokens=longest - free,
    )


def _prefix(where: str, values: Mapping[str, Any], name: str, default: str) -> str:
    found = values.get(name, default)
    if not isinstance(found, str):
        raise Unsupported(f"{where}: {name} is {shown(found)}; expected a text")
    return found
