"""The built-in cases of retrievers of one vector per token. Standard library only.

Every text goes through both kinds, since a document of one kind of characters is a query to another. Cases of scores have a
query and documents, and compare what the server answers with what the library computes from rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from encoder_plugins.artifact.cases import Inputs, complete
from encoder_plugins.errors import Unsupported
from encoder_plugins.families.retrieval.config import InputType
from encoder_plugins.families.retrieval.settings import Settings

# words of the longest text: the reference is recorded on a CPU, and 8 192 tokens would take it minutes
MOST_WORDS = 1_200
MOST_DOCUMENTS = 64

# prompts of one checkpoint that get cases of their own
MOST_PROMPTS = 12

# what a user's case may have beside its text
OPTIONS = {"input_type": "query", "documents": None}

QUESTION = "How many inhabitants does the largest city of Finland have?"
WORDS = (
    *("the", "river", "carried", "small", "boats", "past", "quiet", "gardens", "while", "villagers"),
    *("talked", "about", "weather", "music", "bread", "and", "distant", "cities"),
)


class Case(TypedDict):
    """One text whose rows are compared, or one query whose documents are scored.

    Attributes:
        id: The case's name.
        input_type: What the text is.
        text: The text.
        documents: What the text, a query, scores; None where its rows are compared.
        prompt_name: The prompt that the request names; missing where it names none.
    """

    id: str
    input_type: InputType
    text: str
    documents: list[str] | None
    prompt_name: NotRequired[str]


TEXTS: Mapping[str, str] = {
    "word": "bread",
    "letter": "a",
    "question": QUESTION,
    "twenty-words": " ".join(WORDS) + " near Turku?",
    "three-hundred-words": " ".join(WORDS[index * 7 % len(WORDS)] for index in range(300)),
    "mixed-case": "iPhone, eBay and McDonald's are spelled LiKe ThIs",
    "numbers": "In 1997, 3.14159 and 1,000,000 were worth -42 % of 0x1F.",
    "punctuation-only": "?!... --- ;;; (()) [] {}",
    "punctuation-words": "! \" # $ % & ' ( ) * + , - . / : ; < = > ? @ [ \\ ] ^ _ ` { | } ~",
    "punctuation-inside": "well-known (see: a/b), e.g. x=y; it's 100%!",
    "typographic": "« “ ” ‘ ’ – — …",
    "accents": "Cafe\u0301 naïve Ångström",
    "chinese": "今天天气很好,我们去公园散步吧。",
    "japanese": "吾輩は猫である。カタカナとひらがな。",
    "korean": "오늘은 날씨가 아주 좋습니다.",
    "emoji": "I love it 😀🎉🚀 so much ❤️",
    "emoji-joined": "A family 👨‍👩‍👧‍👦, a flag 🇫🇮, a wave 👋🏽",
    "hebrew": "שלום עולם, זהו משפט קצר בעברית.",
    "space": " ",
    "whitespace-only": " \t\n\r\n  ",
    "whitespace-around": "  \n\tA sentence with space around it.\t\n  ",
    "markers": "[Q] [D] [MASK] [CLS] not [SEP] a <s> token </s> <|endoftext|>",
    "markers-alone": "[D] ",
    "repeated-word": "buffalo " * 60,
    "code": "def add(a: int, b: int) -> int:\n    return a + b  # sums\n",
    "address": "Write to someone@example.org or see https://example.org/a?b=c#d",
    "twin-1": "Two requests with the same text must get the same rows.",
    "twin-2": "Two requests with the same text must get the same rows.",
}

PASSAGES: Sequence[str] = (
    "Helsinki is the largest city of Finland and has about 680 000 inhabitants.",
    "Turku was the capital of Finland until 1812.",
    "Bread is baked from flour, water, salt and yeast.",
    "The river carried small boats past quiet gardens.",
    "?!...",
    "芬兰最大的城市是赫尔辛基。",
    "Finland",
    "Two requests with the same text must get the same rows.",
)


def built_in(settings: Settings) -> list[Case]:
    """Return the built-in cases of a checkpoint."""
    found = [_case(f"{kind}-{name}", kind, text) for kind in ("query", "document") for name, text in TEXTS.items()]
    # a word is a token at least, so that these are cut wherever the limit is lower
    query_most = settings.expansion.length if settings.expansion else settings.lengths["query"]
    for kind, most in (("query", query_most), ("document", settings.lengths["document"])):
        found.append(_case(f"{kind}-beyond-limit", kind, _words(min(2 * (most or MOST_WORDS), MOST_WORDS))))
    further = sorted(settings.named.keys() - {"query", "document"})[:MOST_PROMPTS]
    for number, name in enumerate(further, 1):
        for kind in ("query", "document"):
            found.append({**_case(f"{kind}-prompt-{number}", kind, QUESTION), "prompt_name": name})
    if further:
        # what is stripped, and where, shows at the ends of the whole text
        found.append(
            {**_case("query-prompt-whitespace", "query", TEXTS["whitespace-around"]), "prompt_name": further[0]}
        )
    return found + [_case(name, "query", query, documents) for name, (query, documents) in scored().items()]


def scored() -> dict[str, tuple[str, list[str]]]:
    """Return query and documents of the built-in cases of scores, by the case's id."""
    return {
        "score-question": (QUESTION, list(PASSAGES)),
        "score-word": ("bread", list(PASSAGES[::-1])),
        "score-punctuation": ("?!...", list(PASSAGES)),
        "score-one": ("bread", [PASSAGES[2]]),
        "score-fifty": ("quiet gardens and distant cities", [_passage(number) for number in range(50)]),
    }


def user_cases(inputs: Inputs, others: Sequence[Case]) -> list[Case]:
    """Return a user's own cases.

    Raises:
        Unsupported: One is not a case.
    """
    found = []
    for values in complete(inputs, ("text",), OPTIONS, [case["id"] for case in others]):
        where = f"inputs: {values['id']}"
        text, kind, documents = values["text"], values["input_type"], values["documents"]
        if not isinstance(text, str) or not text:
            raise Unsupported(f"{where}: text is no text")
        if kind not in ("query", "document"):
            raise Unsupported(f"{where}: input_type is none of query and document")
        if documents is not None:
            check_documents(documents, where)
            if kind != "query":
                raise Unsupported(f"{where}: documents are scored by a query, and input_type is {kind}")
        found.append(_case(values["id"], kind, text, documents))
    return found


def check_documents(documents: object, where: str) -> None:
    """Refuse what a user's case cannot have scored; raises Unsupported."""
    if not isinstance(documents, list) or not 0 < len(documents) <= MOST_DOCUMENTS:
        raise Unsupported(f"{where}: documents is not a list of 1 to {MOST_DOCUMENTS} texts")
    if not all(isinstance(document, str) and document for document in documents):
        raise Unsupported(f"{where}: one of documents is no text")


def _case(name: str, kind: str, text: str, documents: list[str] | None = None) -> Case:
    return Case(id=name, input_type="query" if kind == "query" else "document", text=text, documents=documents)


def _words(count: int) -> str:
    return " ".join(WORDS[index * 7 % len(WORDS)] for index in range(count))


def _passage(number: int) -> str:
    """Return one of many passages that differ in words and in length."""
    return " ".join(WORDS[(number * 5 + index * (number % 7 + 1)) % len(WORDS)] for index in range(3 + number % 23))
