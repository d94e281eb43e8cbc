"""The built-in cases of sentence embeddings, how each is asked, and how close an answer must be.

numpy only: the prep image records with these cases, and the parity Job asks them, without torch or vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported, WrongAnswer
from encoder_plugins.inputs.encodings import decode_base64
from encoder_plugins.models.sentence_transformer.checkpoint import Checkpoint
from encoder_plugins.models.sentence_transformer.vectors import Vectors
from encoder_plugins.parity.verdict import Bound, Compared, Tolerance

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
    """One text and how its vector is asked for; null means what it means in a request."""

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
        Unsupported: One is none, or asks for what this checkpoint does not have.
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


class Embeddings:
    """The plugin's side of a comparison; ``encoder_plugins.parity.verdict`` says what each part is for."""

    tolerances: Mapping[str, Tolerance] = {
        # 24 bits of mantissa: the engine only sums in another order; what was measured on a CPU is 0.9999999 and 4e-7. On NVIDIA
        # GPUs vLLM's attention for float32 rounds to TF32 (2.0e-4 on an H200): that is not float32, and fails
        "float32": (Bound("cosine", at_least=0.99999), Bound("max_abs_error", at_most=1e-5)),
        # 11 bits: every layer rounds to 5e-4, and the errors of some dozen layers add up like noise. The 6 layers of MiniLM on
        # an H200 came to 0.9999992 and 2.4e-4
        "float16": (Bound("cosine", at_least=0.9995), Bound("max_abs_error", at_most=5e-3)),
        # 8 bits: every layer rounds to 4e-3; another pooling or a missing module is far outside still. MiniLM on an H200:
        # 0.99991 and 2.6e-3
        "bfloat16": (Bound("cosine", at_least=0.995), Bound("max_abs_error", at_most=3e-2)),
    }

    def group(self, case: Mapping[str, Any]) -> tuple[object, ...]:
        """Return what cases must share to be asked in one request."""
        return (case["prompt_name"], case["dimensions"], case["normalize"])

    def data(self, together: Sequence[Mapping[str, Any]], encoding: Literal["float", "base64"]) -> dict[str, Any]:
        """Return the request data that asks ``together``, cases of one group."""
        prompt_name, dimensions, normalize = self.group(together[0])
        texts = {"text": together[0]["text"]} if len(together) == 1 else {"texts": [case["text"] for case in together]}
        return {
            **texts,
            "prompt_name": prompt_name,
            "dimensions": dimensions,
            "normalize": normalize,
            "encoding": encoding,
        }

    def weight(self, case: Mapping[str, Any]) -> int:
        """Return how many texts of a request a case takes."""
        return 1

    def outputs(
        self, answer: Any, together: Sequence[Mapping[str, Any]], encoding: Literal["float", "base64"]
    ) -> list[Vectors]:
        """Return the vectors of an answer's data, in its order.

        Raises:
            WrongAnswer: It is none that this plugin gives.
        """
        try:
            embeddings = answer["embeddings"]
            if encoding == "base64":
                return [decode_base64(text) for text in embeddings]
            return [np.array(numbers, dtype=np.float32) for numbers in embeddings]
        except (KeyError, TypeError, ValueError) as error:
            raise WrongAnswer(f"the answer holds no embeddings: {error!r}"[:200]) from None

    def compare(self, case: Mapping[str, Any], got: Vectors, expected: Vectors) -> Compared:
        """Return cosine and largest difference, the latter in units of the expected length where that is above 1.

        Vectors without Normalize have any length, and rounding grows with it.

        Raises:
            WrongAnswer: The vector has another length, or a number that is not finite.
        """
        if got.shape != expected.shape:
            raise WrongAnswer(f"shape {got.shape}; expected is {expected.shape}")
        if not np.isfinite(got).all():
            raise WrongAnswer("a number is not finite")
        ours, theirs = got.astype(np.float64), expected.astype(np.float64)
        lengths = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
        cosine = float(ours @ theirs) / lengths if lengths else float(np.array_equal(ours, theirs))
        error = float(np.abs(ours - theirs).max()) / max(1.0, float(np.linalg.norm(theirs)))
        return Compared({"cosine": cosine, "max_abs_error": error})


PARITY = Embeddings()
