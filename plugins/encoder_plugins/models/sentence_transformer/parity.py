"""The built-in cases of sentence embeddings, how each is sent, and how close an answer must be.

Standard library and numpy only: prep chooses cases with it, and the parity Job runs it, without torch or vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.inputs.encodings import decode_base64
from encoder_plugins.models.sentence_transformer import checkpoint
from encoder_plugins.models.sentence_transformer.checkpoint import Checkpoint
from encoder_plugins.models.sentence_transformer.vectors import Vectors
from encoder_plugins.parity.protocol import Arrays, Compared, Threshold, Tolerance, Variant
from encoder_plugins.parity.protocol import Case as AnyCase

# prompts of one checkpoint that get cases of their own
MOST_PROMPTS = 12
# words of the longest text: the reference is recorded on a CPU, and 8 192 tokens would take it minutes
MOST_WORDS = 1_200

# what a user's case may say beside its text
OPTIONS = {"prompt_name": None, "dimensions": None, "normalize": None}

SENTENCE = "A man is playing a guitar on the street."
WORDS = (
    *("the", "river", "carried", "small", "boats", "past", "quiet", "gardens", "while", "people"),
    *("talked", "about", "weather", "music", "bread", "and", "distant", "cities"),
)


class Case(TypedDict):
    """One text and how its vector is requested; null means what it means in a request."""

    id: str
    text: str
    prompt_name: str | None
    dimensions: int | None
    normalize: bool | None


TEXTS: Mapping[str, str] = {
    "word": "bread",
    "letter": "a",
    "sentence": SENTENCE,
    "question": "How many people live in the largest city of Finland?",
    "upper-case": "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG",
    "mixed-case": "iPhone, eBay and McDonald's are spelled LiKe ThIs",
    "numbers": "In 1997, 3.14159 and 1,000,000 were worth -42 % of 0x1F.",
    "punctuation": "?!... --- ;;; (()) [] {} «» “ ” ‘ ’ – — …",
    "contraction": "They'd've gone if it weren't for the children's books, wouldn't they?",
    "paragraph": " ".join(WORDS * 6) + ".",
    "combining-decomposed": "Cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
    "combining-composed": "Café naïve Ångström",
    "combining-many": "Z\u0300\u0301\u0302\u0303a\u0304\u0305l\u0306\u0307g\u0308o\u0309\u030a",
    "emoji": "I love it 😀🎉🚀 so much ❤️",
    "emoji-joined": "A family 👨‍👩‍👧‍👦, a flag 🇫🇮, a wave 👋🏽",
    "hebrew": "שלום עולם, זהו משפט קצר בעברית.",
    "arabic": "مَرْحَبًا بِالعَالَمِ، هذه جملة قصيرة.",
    "mixed-direction": "The word שלום means peace and سلام does too.",
    "chinese": "今天天气很好,我们去公园散步吧。",
    "japanese": "吾輩は猫である。カタカナとひらがな。",
    "korean": "오늘은 날씨가 아주 좋습니다.",
    "thai": "วันนี้อากาศดีมาก",
    "hindi": "आज मौसम बहुत अच्छा है।",
    "cyrillic": "Сегодня очень хорошая погода, и мы гуляем.",
    "greek": "Σήμερα ο καιρός είναι πολύ καλός· ΟΔΥΣΣΕΥΣ.",
    "turkish": "İstanbul'da ılık bir IŞIK ve ışık",
    "german": "Die Straße weiß: Größe heißt GROSSE ẞ Übung.",
    "full-width": "Ｆｕｌｌ　ｗｉｄｔｈ ﬁne ligatures ﬀ",
    "mathematics": "∀x ∈ ℝ: ∑ᵢ xᵢ² ≥ 0, 𝒇(𝑥) = √2",
    "invisible": "zero\u200bwidth\u200djoin\ufeffmark\u00adsoft\u202eover",
    "rare-planes": "𒀀𒁀 \U000f0000 \ue000 \ufffd 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "space": " ",
    "whitespace-only": " \t\n\r\n  ",
    "whitespace-around": "  \n\tA sentence with space around it.\t\n  ",
    "whitespace-inside": "Words     with\t\ttabs\n\n\nlines and\u00a0hard\u3000wide spaces",
    "repeated-word": "buffalo " * 60,
    "repeated-letter": "x" * 1_000,
    "repeated-sentence": (SENTENCE + " ") * 12,
    "special-tokens": "[CLS] not [SEP] a [MASK] real <s> token </s> <|endoftext|> <bos>",
    "code": "def add(a: int, b: int) -> int:\n    return a + b  # sums\n",
    "json": '{"name": "value", "list": [1, 2, null], "nested": {"a": true}}',
    "markup": '<p class="x">Hello &amp; <b>goodbye</b></p>',
    "address": "Write to someone@example.org or see https://example.org/a?b=c#d",
    "twin-1": "Two requests with the same text must get the same vector.",
    "twin-2": "Two requests with the same text must get the same vector.",
}


def cases(model: Checkpoint) -> list[Case]:
    """Return the built-in cases of a checkpoint: its texts, its prompts, and every choice a request has."""
    limit = model.max_tokens or model.max_positions or MOST_WORDS
    found = [_case(name, text) for name, text in TEXTS.items()]
    # a word is a token at least: the first is cut wherever the limit is lower, the second goes far beyond most limits
    found += [
        _case("long", _words(min(limit, MOST_WORDS) // 2)),
        _case("beyond-limit", _words(min(2 * limit, MOST_WORDS))),
    ]
    prompts = ["query", *sorted(name for name, text in model.prompts.items() if text and name != "query")]
    found += [
        _case(f"prompt-{number}", SENTENCE, prompt_name=name) for number, name in enumerate(prompts[:MOST_PROMPTS])
    ]
    half = max(1, model.dimensions // 2)
    found += [
        _case("dimensions-half", SENTENCE, dimensions=half),
        _case("dimensions-one", SENTENCE, dimensions=1),
        _case("dimensions-all", SENTENCE, dimensions=model.dimensions),
        _case("dimensions-half-unit", SENTENCE, dimensions=half, normalize=True),
        _case("dimensions-half-raw", SENTENCE, dimensions=half, normalize=False),
        _case("unit", SENTENCE, normalize=True),
        _case("raw", SENTENCE, normalize=False),
    ]
    return found


def user_cases(inputs: Inputs, others: Sequence[Case], model: Checkpoint) -> list[Case]:
    """Return a user's own cases: a text each, and what else a request may say.

    Raises:
        Unsupported: One is not a case, or requests what this checkpoint does not have.
    """
    found = []
    for values in complete(inputs, ("text",), OPTIONS, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, prompt_name, dimensions, normalize = (values[name] for name in ("text", *OPTIONS))
        if not isinstance(text, str) or not text:
            raise Unsupported(f"{where}: text is no text")
        if prompt_name is not None and prompt_name not in model.prompts:
            raise Unsupported(f"{where}: the checkpoint has no prompt {prompt_name!r}")
        if dimensions is not None and not (type(dimensions) is int and 0 < dimensions <= model.dimensions):
            raise Unsupported(f"{where}: dimensions is not one of 1 to {model.dimensions}")
        if normalize not in (None, True, False):
            raise Unsupported(f"{where}: normalize is none of true, false and null")
        found.append(_case(values["id"], text, prompt_name=prompt_name, dimensions=dimensions, normalize=normalize))
    return found


def _case(
    name: str,
    text: str,
    *,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> Case:
    return Case(id=name, text=text, prompt_name=prompt_name, dimensions=dimensions, normalize=normalize)


def _words(count: int) -> str:
    return " ".join(WORDS[index * 7 % len(WORDS)] for index in range(count))


# reasons of the limits, for the plugin's page
_SUMS = (
    "24 bits of mantissa: the engine only sums in another order; 0.9999999 and 4e-7 were measured on a CPU. vLLM's attention"
    " for float32 on NVIDIA GPUs rounds to TF32 (2.0e-4 on an H200), which is not float32, and fails"
)
_HALF = (
    "11 bits of mantissa: each layer rounds to 5e-4, and errors of some dozen layers add up like noise; the 6 layers of MiniLM"
    " on an H200 came to 0.9999992 and 2.4e-4"
)
_BRAIN = "8 bits of mantissa: each layer rounds to 4e-3; MiniLM on an H200 came to 0.99991 and 2.6e-3"
_RATIO = (
    "the library in bfloat16 is as far from itself in float32 as rounding takes it; an engine that rounds at other places"
    " is about as far, and the largest of some hundred answers up to twice"
)
_RATIO_HALF = (
    "float16 has 3 bits more than bfloat16, so an eighth of its rounding; the limit is a quarter of bfloat16's"
)

FLOAT = Variant("pooling-float", encoding="float")
BASE64 = Variant("pooling-base64", encoding="base64")
OPENAI = Variant("openai-base64", route="/v1/embeddings", encoding="base64")

# a vector of fewer numbers says too little about rounding
FEWEST_NUMBERS = 8
# rounding of the library in bfloat16 below this is chance: 2^-9, half a unit in the last place
SMALLEST_NOISE = 2.0**-9


class Embeddings:
    """The plugin's side of the parity check; ``encoder_plugins.parity.protocol.Parity`` says what each part is for.

    `cosine` is that of the answer and the library's float32 vector, and `max_abs_error` their largest difference in units
    of the vector's length where that is above 1. `noise_ratio` says how far the answer is from the library's float32 vector,
    in units of the distance that the library itself has from it in bfloat16.
    """

    tolerances: Mapping[str, Tolerance] = {
        "float32": (
            Threshold("cosine", at_least=0.99999, label="min cosine", reason=_SUMS),
            Threshold("max_abs_error", at_most=1e-5, label="max |Δ|", reason=_SUMS),
        ),
        "float16": (
            Threshold("cosine", at_least=0.9995, label="min cosine", reason=_HALF),
            Threshold("max_abs_error", at_most=5e-3, label="max |Δ|", reason=_HALF),
            Threshold(
                "noise_ratio", at_most=0.75, label="error over the library's own in bfloat16", reason=_RATIO_HALF
            ),
        ),
        "bfloat16": (
            Threshold("cosine", at_least=0.995, label="min cosine", reason=_BRAIN),
            Threshold("max_abs_error", at_most=3e-2, label="max |Δ|", reason=_BRAIN),
            Threshold("noise_ratio", at_most=3.0, label="error over the library's own in bfloat16", reason=_RATIO),
        ),
    }

    def cases(self, folder: Path, inputs: Inputs) -> list[AnyCase]:
        """Return the built-in cases of the checkpoint in ``folder``, and the user's own."""
        model = checkpoint.read(folder)
        built_in = cases(model)
        return [*built_in, *user_cases(inputs, built_in, model)]

    def variants(self) -> Sequence[Variant]:
        """Return both encodings of ``/pooling``, and the route of OpenAI's clients."""
        return (FLOAT, BASE64, OPENAI)

    def group(self, case: AnyCase, variant: Variant) -> tuple[object, ...] | None:
        """Return what cases must share to be sent in one request; OpenAI's API has no field for prompt and length."""
        if variant == OPENAI and (case["prompt_name"], case["normalize"]) != (None, None):
            return None
        return (case["prompt_name"], case["dimensions"], case["normalize"])

    def weight(self, case: AnyCase) -> int:
        """Return how many texts of a request a case takes."""
        return 1

    def body(self, together: Sequence[AnyCase], variant: Variant) -> dict[str, Any]:
        """Return the request body for cases of one group."""
        prompt_name, dimensions, normalize = (together[0][name] for name in OPTIONS)
        if variant == OPENAI:
            body: dict[str, Any] = {"input": [case["text"] for case in together], "encoding_format": variant.encoding}
            return body if dimensions is None else {**body, "dimensions": dimensions}
        texts = {"text": together[0]["text"]} if len(together) == 1 else {"texts": [case["text"] for case in together]}
        data = {
            **texts,
            "prompt_name": prompt_name,
            "dimensions": dimensions,
            "normalize": normalize,
            "encoding": variant.encoding,
        }
        return {"data": data}

    def outputs(self, content: bytes, together: Sequence[AnyCase], variant: Variant) -> list[Vectors]:
        """Return the vectors of an answer, in its order.

        Raises:
            WrongAnswer: The body is not an answer of this plugin's.
        """
        try:
            data = json.loads(content)["data"]
            embeddings = [one["embedding"] for one in data] if variant == OPENAI else data["embeddings"]
            if variant.encoding == "base64":
                return [decode_base64(text) for text in embeddings]
            return [np.array(numbers, dtype=np.float32) for numbers in embeddings]
        except (KeyError, TypeError, ValueError) as error:
            raise WrongAnswer(f"the answer holds no embeddings: {error!r}"[:200]) from None

    def compare(self, case: AnyCase, got: Vectors, expected: Arrays) -> Compared:
        """Compare a vector `[dimensions]` with the library's.

        Raises:
            WrongAnswer: The vector has another length, or a value that is not finite.
        """
        reference = expected["vector"]
        if got.shape != reference.shape:
            raise WrongAnswer(f"shape {got.shape}; expected is {reference.shape}")
        if not np.isfinite(got).all():
            raise WrongAnswer("a number is not finite")
        ours, theirs = got.astype(np.float64), reference.astype(np.float64)
        length = float(np.linalg.norm(theirs))
        lengths = float(np.linalg.norm(ours)) * length
        cosine = float(ours @ theirs) / lengths if lengths else float(np.array_equal(ours, theirs))
        metrics = {"cosine": cosine, "max_abs_error": float(np.abs(ours - theirs).max()) / max(1.0, length)}
        rounded = expected.get("vector_bfloat16")
        if rounded is not None and len(reference) >= FEWEST_NUMBERS and length:
            noise = float(np.linalg.norm(rounded.astype(np.float64) - theirs)) / length
            metrics["noise_ratio"] = float(np.linalg.norm(ours - theirs)) / length / max(noise, SMALLEST_NOISE)
        return Compared(metrics)

    def summarise(self, samples: Mapping[str, NDArray[np.float64]]) -> Mapping[str, float]:
        """Return nothing: every case is compared by itself."""
        return {}


PARITY = Embeddings()
