"""The methods of ``sentence_transformers.SentenceTransformer`` as requests. Pure: each plans a call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from encoder_client import progress
from encoder_client.arrays import Array, array_of
from encoder_client.context import Context, refuse
from encoder_client.errors import ArgumentError
from encoder_client.work import Answer, Batch, Item, Work, json_of, positive, texts_of

Precision: TypeAlias = Literal["float32", "int8", "uint8", "binary", "ubinary"]
Side: TypeAlias = Literal["query", "document"]

NO_TORCH = "this client has no torch: answers are numpy arrays, of which torch.from_numpy makes tensors; leave it out"
NO_DEVICE = "the server decides where and how texts are computed; leave it out"
# a request with fewer texts may stay below the limit that stands behind it
_DIVISIBLE = ("data.texts",)
_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
# gives vectors that are cut the length 1 in any case; the library only with normalize_embeddings
_UNIT_WHERE_CUT = "embeddinggemma"


class Encode:
    """Plans ``encode``, ``encode_query`` or ``encode_document``, which differ in the prompt alone."""

    def __init__(self, side: Side | None) -> None:
        self._side = side
        prompt = "the checkpoint's default prompt" if side is None else f"the checkpoint's prompt for a {side}"
        self.__name__ = "encode" if side is None else f"encode_{side}"
        self.__doc__ = (type(self).__call__.__doc__ or "").replace("the checkpoint's default prompt", prompt)

    def __call__(
        self,
        context: Context,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding"] = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: Literal[True] = True,
        convert_to_tensor: Literal[False] = False,
        device: None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
    ) -> Work[Array]:
        """Return the vector of each text, as the method of the same name of ``SentenceTransformer`` does.

        Args:
            context: The server.
            inputs: One text, or several. None of them is empty.
            prompt_name: A prompt of the checkpoint, put before each text; None takes the checkpoint's default prompt.
            prompt: A prompt of your own, where the plugin takes one (embeddinggemma); ``prompt_name`` is then ignored.
            batch_size: Texts of one request; fewer where the server's limits require it.
            show_progress_bar: Whether a progress bar is shown; None shows it where the log level is INFO or DEBUG.
            output_value: Only ``sentence_embedding``.
            precision: The numbers of the answer. int8 and uint8 are steps between the ranges of the artifact's calibration texts,
                not between those of ``inputs``; binary and ubinary are signs, eight in a number.
            convert_to_numpy: Only True: there is no torch.
            convert_to_tensor: Only False.
            device: Only None: the server decides.
            normalize_embeddings: Whether vectors get length 1, after they are cut. False leaves it to the checkpoint's modules.
            truncate_dim: Numbers to keep of each vector; None keeps all, or as many as the client was made with.
            pool: Only None: the server decides.
            chunk_size: Only None: the server decides.

        Returns:
            `[texts, dimensions]` float32, or of the precision (`[texts, dimensions / 8]` for signs); `[dimensions]` for one text.

        Raises:
            ArgumentError: An argument cannot be honoured; ``param`` is its name.
            InvalidRequestError: The server refused a request; ``param`` is the field, with the position in ``inputs``.
            EncoderClientError: No answer; see ``encoder_client.errors``.
        """
        server = context.server
        server.require_kind("normalize", kind="the methods of SentenceTransformer")
        refuse(NO_TORCH, convert_to_numpy=not convert_to_numpy, convert_to_tensor=convert_to_tensor)
        refuse(NO_DEVICE, device=device, pool=pool, chunk_size=chunk_size)
        if output_value != "sentence_embedding":
            raise ArgumentError("the server answers with sentence_embedding alone", param="output_value")
        if precision not in _PRECISIONS:
            raise ArgumentError(f"{precision!r} is not one of {', '.join(_PRECISIONS)}", param="precision")
        single = isinstance(inputs, str)
        texts = [inputs] if isinstance(inputs, str) else texts_of(inputs, param="inputs")
        cut = context.truncate_dim if truncate_dim is None else positive(truncate_dim, param="truncate_dim")
        # signs are the same whatever the length
        cut_here = (
            cut is not None
            and server.plugin == _UNIT_WHERE_CUT
            and not normalize_embeddings
            and precision not in ("binary", "ubinary")
        )
        common: dict[str, Any] = {
            "encoding": "bytes",
            "embedding_dtype": precision,
            "normalize": True if normalize_embeddings else None,
            "dimensions": None if cut_here else cut,
        }
        if cut_here and precision != "float32":
            raise ArgumentError(
                "the server gives vectors that are cut the length 1 before it quantises them: set it to True",
                param="normalize_embeddings",
            )
        if prompt is not None:
            server.require("prompt", argument="prompt")
            common["prompt"] = prompt
        elif prompt_name is not None:
            common["prompt_name"] = prompt_name
        elif self._side is not None:
            common["input_type"] = self._side

        def decode(answer: Answer, batch: Batch) -> Array:
            found = array_of(answer.content, answer.headers)
            if len(found) != len(batch.items):
                raise ValueError(f"{len(found)} vectors for {len(batch.items)} texts")
            return found[:, :cut] if cut_here else found

        def combine(parts: list[Array]) -> Array:
            if not parts:
                # what the library returns for no texts
                return np.array([])
            together = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return together[0] if single else together

        batches = context.batches(text_items(texts), common, batch_size=batch_size, divisible=_DIVISIBLE)
        shown = progress.wanted(show_progress_bar)
        return Work(batches=iter(batches), total=len(texts), decode=decode, combine=combine, progress=shown)


def get_embedding_dimension(context: Context) -> Work[int]:
    """Return the length of the vectors that ``encode`` returns, for which it has one computed."""
    found = encode(context, "a", show_progress_bar=False)
    return Work(batches=found.batches, total=1, decode=found.decode, combine=lambda parts: len(found.combine(parts)))


def get_sentence_embedding_dimension(context: Context) -> Work[int]:
    """Return the same as ``get_embedding_dimension``: its older name, deprecated by the library, too."""
    warnings.warn(
        "get_sentence_embedding_dimension is deprecated by sentence-transformers; use get_embedding_dimension",
        FutureWarning,
        stacklevel=3,
    )
    return get_embedding_dimension(context)


def text_items(texts: Sequence[str]) -> Iterator[Item]:
    """Yield texts as items."""
    for place, text in enumerate(texts):
        yield Item(values={"texts": json_of(text, param=f"texts[{place}]")}, characters=len(text), place=place)


encode = Encode(None)
encode_query = Encode("query")
encode_document = Encode("document")
