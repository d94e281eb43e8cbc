"""The built-in cases of text embeddings, and a user's own. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.embedding.config import EmbeddingConfig
from encoder_plugins.families.retrieval.cases import check_documents, scored

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
    """One text and how its vector is requested, or one query and the documents that it scores; null means what it means in a request."""

    id: str
    text: str
    prompt_name: str | None
    dimensions: int | None
    normalize: bool | None
    documents: list[str] | None


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


def texts_of(model: EmbeddingConfig, *, most_words: int = MOST_WORDS) -> dict[str, str]:
    """Return the texts of the built-in cases by the case's id; the longest has ``most_words`` words."""
    limit = model.max_tokens or model.max_positions or most_words
    # a word is a token at least: the first is cut wherever the limit is lower, the second goes far beyond most limits
    return {
        **TEXTS,
        "long": _words(min(limit, most_words) // 2),
        "beyond-limit": _words(min(2 * limit, most_words)),
    }


def cases(model: EmbeddingConfig) -> list[Case]:
    """Return the built-in cases of a checkpoint: its texts, its prompts, and every choice a request has."""
    found = [_case(name, text) for name, text in texts_of(model).items()]
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
    return found + [_case(name, query, documents=documents) for name, (query, documents) in scored().items()]


def user_cases(inputs: Inputs, others: Sequence[Mapping[str, Any]], model: EmbeddingConfig) -> list[Case]:
    """Return a user's own cases: a text each, and what else a request may say.

    Raises:
        Unsupported: One is not a case, or requests what this checkpoint does not have.
    """
    found = []
    for values in complete(inputs, ("text",), {**OPTIONS, "documents": None}, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, prompt_name, dimensions, normalize = (values[name] for name in ("text", *OPTIONS))
        check_scored(values, OPTIONS, where)
        if not isinstance(text, str) or not text:
            raise Unsupported(f"{where}: text is no text")
        if prompt_name is not None and prompt_name not in model.prompts:
            raise Unsupported(f"{where}: the checkpoint has no prompt {prompt_name!r}")
        if dimensions is not None and not (type(dimensions) is int and 0 < dimensions <= model.dimensions):
            raise Unsupported(f"{where}: dimensions is not one of 1 to {model.dimensions}")
        if normalize not in (None, True, False):
            raise Unsupported(f"{where}: normalize is none of true, false and null")
        found.append(
            _case(
                values["id"],
                text,
                prompt_name=prompt_name,
                dimensions=dimensions,
                normalize=normalize,
                documents=values["documents"],
            )
        )
    return found


def check_scored(case: Mapping[str, Any], options: Iterable[str], where: str) -> None:
    """Refuse a user's case whose documents cannot be scored, or which says of vectors what a request for scores does not have.

    Args:
        case: The case.
        options: What one without documents may say.
        where: What precedes the message.

    Raises:
        Unsupported: It is one.
    """
    if case["documents"] is None:
        return
    check_documents(case["documents"], where)
    if given := [name for name in options if case[name] is not None]:
        raise Unsupported(f"{where}: documents are scored as the checkpoint says, and {given[0]} is there, too")


def _case(
    name: str,
    text: str,
    *,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    documents: list[str] | None = None,
) -> Case:
    return Case(
        id=name,
        text=text,
        prompt_name=prompt_name,
        dimensions=dimensions,
        normalize=normalize,
        documents=documents,
    )


def _words(count: int) -> str:
    return " ".join(WORDS[index * 7 % len(WORDS)] for index in range(count))
