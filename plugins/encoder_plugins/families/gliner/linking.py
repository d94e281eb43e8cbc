"""Requests for entities among labels or candidates that have an encoder of their own, and for the vectors of labels.

Labels go to the engine as token ids, with every request: see ``heads.label_vectors``. A client that has the vectors of its labels can
send those instead. Requests that name a set of labels: ``set_requests``. Everything else is the other token-level models': ``rerank``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from tokenizers import Tokenizer

from encoder_plugins.errors import InvalidRequest
from encoder_plugins.families.gliner import payload, request
from encoder_plugins.families.gliner.answers import Candidates, PreparedText, Table
from encoder_plugins.families.gliner.config import LABELS_TOKENIZER
from encoder_plugins.families.gliner.label_runs import BiPromptBuilder
from encoder_plugins.families.gliner.processor import Parsed, Unsplit, read_config, read_tokenizer
from encoder_plugins.families.gliner.prompt import LabelProblem
from encoder_plugins.families.gliner.request import Body, EntityRequest, GlinerLimits, SingleBody
from encoder_plugins.families.gliner.set_requests import SetProcessor, SetRequest
from encoder_plugins.inputs import body as bodies
from encoder_plugins.inputs.body import Data, Envelope
from encoder_plugins.inputs.encodings import decode_base64, encode_base64
from encoder_plugins.plugin import Route
from encoder_plugins.serving import limits
from encoder_plugins.serving.processor import Engine, Prompt, Response, Schema, ServingContext

_VECTORS = "data.label_vectors.vectors"
# what writing a vector in base64 takes
_MICROSECONDS_PER_VECTOR = 20


class GivenVectors(Data, frozen=True):
    """Vectors of labels, as a request with `encode` is answered with them."""

    digest: Annotated[str, Meta(description="The artifact whose vectors they are. Those of another one are refused.")]
    vectors: Annotated[
        dict[str, str],
        Meta(description="By label: the vector's float32 numbers, little-endian, in base64."),
    ]


class LinkingRequest(SetRequest, frozen=True):
    """Texts, the labels or candidates of entities to find in them, and how to choose among what is found."""

    encode: Annotated[
        Literal["labels"] | None,
        Meta(description="labels: the answer is the vectors of `labels`, and there is no text."),
    ] = None
    label_vectors: Annotated[
        GivenVectors | None,
        Meta(description="Vectors of labels, which are then not encoded. A label without one is."),
    ] = None


class EncodedLabels(msgspec.Struct, frozen=True):
    """The answer to a request with `encode`; its `label_vectors` can be sent as they are."""

    label_vectors: GivenVectors


class EncodedBody(msgspec.Struct, frozen=True):
    """The body of a response to a request with `encode`."""

    data: EncodedLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkingLimits(GlinerLimits):
    """The limits of a request; ``families.gliner.limits`` describes them."""

    label_tokens: int
    label_vectors: int


@dataclass(frozen=True, slots=True)
class LabelsToEncode:
    """A checked request for vectors.

    Attributes:
        labels: Different from each other.
        runs: The token ids of each.
        lora: The adapter; None for none.
    """

    labels: tuple[str, ...]
    runs: tuple[bytes, ...]
    lora: str | None


class LinkingProcessor(SetProcessor):
    """Serves the entities of one bi-encoder, candidates with ids, and vectors of labels."""

    schemas: ClassVar[Mapping[str, Schema]] = {
        "pooling": Schema(Envelope[LinkingRequest], SingleBody, Body, EncodedBody)
    }
    envelope: ClassVar[Any] = Envelope[LinkingRequest]

    def __init__(self, context: ServingContext) -> None:
        super().__init__(context)
        own = limits.typed(LinkingLimits, context.limits)
        self._label_tokens, self._label_vectors = own.label_tokens, own.label_vectors

    def builder(self, folder: Path, tokenizer: Tokenizer, limit: int | None) -> BiPromptBuilder:
        """Return what makes the prompts of the model in ``folder``; its tokenizer cuts them off at ``limit``."""
        return bi_builder(folder, tokenizer, limit)

    def parse(self, route: Route, body: bytes) -> Parsed | LabelsToEncode:  # type: ignore[override]
        """Check the request and make its prompts."""
        del route
        envelope = bodies.decode(body, self.envelope)
        lora = bodies.adapter_of(envelope.model, envelope.lora, self._context.names, self._context.adapters)
        if envelope.data.encode is not None:
            return self.labels_to_encode(envelope.data, lora)
        request.check_language(envelope.data, self._config.languages)
        return self.prepare(envelope.data, lora)

    def labels_to_encode(self, data: LinkingRequest, lora: str | None = None) -> LabelsToEncode:
        """Check a request for the vectors of labels.

        Raises:
            InvalidRequest: It has no labels, or too many, or something that vectors do not depend on.
        """
        for name, value in msgspec.structs.asdict(data).items():
            if name not in {"encode", "labels"} and value != getattr(_ONLY_LABELS, name):
                raise InvalidRequest(
                    "with encode only labels can be there; the vectors depend on nothing else", param=f"data.{name}"
                )
        if not data.labels:
            raise InvalidRequest("there are no labels to encode", param="data.labels")
        names = request.unique(data.labels, "data.labels", self.limits)
        runs = self._labels(data, 0, names).runs
        self._check_tokens(data, payload.RunList.of(runs).tokens)
        return LabelsToEncode(names, runs, lora)

    async def run(self, request: Parsed | Unsplit | LabelsToEncode, engine: Engine) -> Response:
        """Answer with the entities of each text, in the order of the texts, or with the vectors of labels."""
        if not isinstance(request, LabelsToEncode):
            return await super().run(request, engine)
        # every prompt has a token, and nothing of the answer depends on this one
        prompt = Prompt(token_ids=[0], parameters=payload.encode_labels(request.runs))
        (vectors,) = await engine.encode([prompt], lora=request.lora)
        size = _MICROSECONDS_PER_VECTOR * len(request.runs)
        return await engine.compute(self._encoded, request, vectors.numpy(), size=size)

    def _encoded(self, sent: LabelsToEncode, vectors: np.ndarray[Any, np.dtype[np.float32]]) -> Response:
        written = dict(zip(sent.labels, encode_base64(vectors), strict=True))
        body = EncodedBody(EncodedLabels(GivenVectors(self._context.digest, written)))
        return Response(body=msgspec.json.encode(body), prompt_tokens=sum(map(len, sent.runs)) // 4)

    def prepare(self, data: EntityRequest, lora: str | None = None) -> Parsed:
        """Check what the envelope holds, and make its prompts."""
        given = self._given(data)
        parsed = super().prepare(data, lora)
        # texts of a request have the same list mostly, as one object
        lists = list({id(part.item.runs): part.item.runs for part in parsed.parts}.values())
        if len(lists) == 1 and not given:
            self._check_tokens(data, payload.RunList.of(lists[0]).tokens)
        else:
            different = {run for runs in lists for run in runs}
            self._check_tokens(data, payload.RunList(different - given.keys()).tokens)
        if not given:
            return parsed
        runs = [payload.decode_runs(prompt.parameters or {}) for prompt in parsed.prompts]
        if (count := sum(run in given for prompt in runs for run in prompt)) > self._label_vectors:
            raise InvalidRequest(
                f"the prompts of this request have {count} of these vectors; the limit is {self._label_vectors}",
                param=_VECTORS,
            )
        return replace(
            parsed,
            prompts=[_with_vectors(prompt, own, given) for prompt, own in zip(parsed.prompts, runs, strict=True)],
        )

    def _given(self, data: EntityRequest) -> Mapping[bytes, bytes]:
        """Return what stands for the token ids of each label whose vector is given.

        Raises:
            InvalidRequest: They are another artifact's, or too many, or no vectors of this model.
        """
        if not isinstance(data, LinkingRequest) or data.label_vectors is None:
            return {}
        if data.label_vectors.digest != self._context.digest:
            raise InvalidRequest(
                f"the vectors are of the artifact {data.label_vectors.digest[:80]!r}; {self._context.digest!r} is served",
                param="data.label_vectors.digest",
            )
        names = request.unique(list(data.label_vectors.vectors), _VECTORS, self.limits, keys=True)
        given: dict[bytes, bytes] = {}
        for name, run in zip(names, self._given_runs(names), strict=True):
            vector = self._vector(name, data.label_vectors.vectors[name])
            if given.setdefault(run, vector) != vector:
                raise InvalidRequest(
                    f"the label {name!r} has the same tokens as another one, and another vector", param=_VECTORS
                )
        return given

    def _given_runs(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        try:
            return self._builder.labels(names).runs
        except LabelProblem as problem:
            raise InvalidRequest(str(problem), param=_VECTORS) from None

    def _vector(self, name: str, text: str) -> bytes:
        """Return the run of a vector in base64."""
        size = self._config.hidden_size
        try:
            vector = decode_base64(text)
        except ValueError:
            raise InvalidRequest(f"the vector of {name!r} is not float32 numbers in base64", param=_VECTORS) from None
        if vector.shape != (size,):
            raise InvalidRequest(f"the vector of {name!r} has {vector.size} numbers; expected {size}", param=_VECTORS)
        # NaN is not below it, either
        if not (np.abs(vector) <= payload.VECTOR_LIMIT).all():
            raise InvalidRequest(
                f"the vector of {name!r} has numbers that are not finite, or beyond {payload.VECTOR_LIMIT:.0f}",
                param=_VECTORS,
            )
        return payload.vector_run(vector.astype(np.float32))

    def _candidates(self, text: PreparedText, tables: Sequence[Table], data: EntityRequest, before: int) -> Candidates:
        """Return the candidates of a text behind ``before`` ones of the same request, as few as a request may have."""
        if not self._by_word:
            self._check_count(tables, before)
        return super()._candidates(text, tables, data, before)

    def _check_tokens(self, data: EntityRequest, tokens: int) -> None:
        if tokens > self._label_tokens:
            given = ("labels", "labels_per_text", "candidates_per_text", "label_set")
            field = next(name for name in given if getattr(data, name, None) is not None)
            raise InvalidRequest(
                f"the different labels are {tokens} tokens; the limit is {self._label_tokens}", param=f"data.{field}"
            )


_ONLY_LABELS = LinkingRequest()


def bi_builder(folder: Path, tokenizer: Tokenizer | None = None, limit: int | None = None) -> BiPromptBuilder:
    """Return what makes the prompts of the model in ``folder``.

    Args:
        folder: The artifact's model folder.
        tokenizer: That of texts, where it has been read.
        limit: Where it cuts prompts off; None for never.
    """
    labels = read_config(folder).label_encoder
    if labels is None:
        raise ValueError(f"{folder}: config.json has no encoder of labels")
    if tokenizer is None:
        tokenizer, limit = read_tokenizer(folder)
    labels_tokenizer, _ = read_tokenizer(folder / LABELS_TOKENIZER)
    return BiPromptBuilder(tokenizer, labels_tokenizer, tokenizer_limit=limit, most=labels.max_tokens)


def _with_vectors(prompt: Prompt, runs: Sequence[bytes], given: Mapping[bytes, bytes]) -> Prompt:
    """Return a prompt with vectors in place of the token ids of labels that have one."""
    own = payload.encode_runs([given.get(run, run) for run in runs])
    return replace(prompt, parameters={**(prompt.parameters or {}), **own})
