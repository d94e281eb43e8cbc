"""Token ids and positions, against the library's processor with its own tokenizers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from encoder_plugins.families.gliner import prompt as prompts
from encoder_plugins.families.gliner import words
from encoder_plugins.families.gliner.config import GlinerConfig
from encoder_plugins.families.gliner.prompt import LabelProblem, PromptBuilder, Tokens, WordTokens
from encoder_plugins.families.gliner.tests.library import MAX_WORDS, Library
from encoder_plugins.families.gliner.tests.test_words import SCRIPTS, TEXTS

LABELS = (
    ("person",),
    ("person", "company", "city"),
    ("date of birth", "Vor- und Nachname", "名前", "a  b", " leading", "trailing ", "🏳️‍🌈", "İ", "e\u0301"),
    tuple(f"label number {number}" for number in range(25)),
)
# words that tokenizers drop, or make much of
HARD = (
    "\u200b",
    "\ufeff",
    "\x00",
    "\u00ad",
    "�",
    "\ue000",
    "a\u200bb",
    "ﷺ",
    "𝔸",
    "<",
    ">",
    "▁",
    "▁▁",
    "supercalifragilistic" * 9,
)


def made(builder: PromptBuilder, text: str, labels: tuple[str, ...]) -> tuple[list[int], list[int], list[int]]:
    marked = builder.labels(labels)
    prompt = builder.build(marked, builder.word_tokens(words.split(text)[:MAX_WORDS]))
    return prompt.tokens, prompt.words.tolist(), marked.positions.tolist()


def tokens_of(library: Library, word: str) -> list[int]:
    tokens: list[int] = library.tokenizer.tokens(word)
    return tokens


@pytest.mark.parametrize("labels", LABELS, ids=len)
def test_prompts_are_the_library_s(library: Library, labels: tuple[str, ...]) -> None:
    builder = library.builder()
    for text in (*filter(str.strip, TEXTS), " ".join(HARD), "word " * 300, *(f"a {word} b" for word in HARD)):
        expected = library.positions(text, labels)
        # once from the tokenizer, once from what is remembered
        assert made(builder, text, labels) == expected, text
        assert made(builder, text, labels) == expected, text


def test_any_text_and_labels_give_the_library_s_prompt(library: Library) -> None:
    builder = library.builder()
    ordinary = st.one_of(st.text(alphabet=SCRIPTS), st.text(max_size=80), st.text(alphabet="abc-_ .", max_size=200))
    # what is between the markers' angles could be a marker, and is refused: test_labels_with_markers
    labels = st.lists(ordinary.filter(lambda text: text.strip() and "<" not in text and "[" not in text), min_size=1)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(ordinary.filter(str.strip), labels.map(lambda items: tuple(dict.fromkeys(items))))
    def check(text: str, labels: tuple[str, ...]) -> None:
        kept = tuple(label for label in labels if tokens_of(library, label))
        if kept != labels:
            with pytest.raises(LabelProblem, match="leaves nothing"):
                made(builder, text, labels)
        assert made(builder, text, kept) == library.positions(text, kept)

    check()


@pytest.mark.parametrize("limit", [24, 25, 60])
def test_the_tokenizer_s_limit_cuts_where_the_library_cuts(library: Library, limit: int) -> None:
    labels = ("person", "company")
    builder = library.builder(tokenizer_limit=limit)
    cutting = replace(library, changes={"limit": limit})
    for text in ("word " * 300, "Donaudampfschifffahrtsgesellschaftskapitän " * 5, "short", " ".join(HARD)):
        assert made(builder, text, labels) == cutting.positions(text, labels)
    tokens, positions, _ = made(builder, "word " * 300, labels)
    assert len(tokens) == limit
    assert positions[-1] == -1
    pieces = builder.word_tokens(["word"] * 300)
    whole = library.builder().build(builder.labels(labels), pieces)
    cut = builder.build(builder.labels(labels), pieces).cut
    assert (cut, whole.cut) == (len(whole.tokens) - limit, 0)


def test_a_prompt_fills_the_tokenizer_s_limit_to_the_last_token(one: Library) -> None:
    builder = one.builder(tokenizer_limit=60)
    marked = builder.labels(("person", "company"))
    (last,) = builder.build(marked, []).tokens[len(marked.tokens) :]
    room = 60 - len(marked.tokens) - builder.behind
    for words_over in range(3):
        prompt = builder.build(marked, [(7,)] * (room + words_over))
        assert prompt.tokens == [*marked.tokens, *[7] * room, last]
        assert (prompt.cut, prompt.words_kept) == (words_over, room)


@pytest.fixture
def dropping(library: Library) -> Library:
    """The library with a tokenizer that drops zero-width spaces, as the published ones of DeBERTa and mT5 do."""
    changed = replace(library, changes={"drop": "\u200b"})
    backend = changed.tokenizer.backend_tokenizer
    before = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([normalizers.Replace("\u200b", ""), *before])
    return changed


def test_a_word_without_tokens_moves_the_words_behind_it_as_in_the_library(dropping: Library) -> None:
    builder = dropping.builder()
    for text in ("\u200b", "\u200b a", "a \u200b b c", "a \u200b \u200b b\u200bc", "word \u200b " * 200):
        assert made(builder, text, ("x", "y\u200b")) == dropping.positions(text, ("x", "y\u200b"))
    _, positions, _ = made(builder, "a \u200b b c", ("x",))
    assert [place >= 0 for place in positions] == [True, True, True, False]


def test_a_label_without_tokens_is_refused(dropping: Library) -> None:
    with pytest.raises(LabelProblem, match="leaves nothing") as refused:
        dropping.builder().labels(("x", "\u200b"))
    assert refused.value.position == 1
    # clients read it
    assert str(refused.value) == "the tokenizer leaves nothing of the label '\\u200b'"


def test_a_tokenizer_that_drops_letters_or_puts_marks_between_tokens_is_refused(one: Library) -> None:
    with pytest.raises(ValueError, match="makes no tokens of the word 'a'"):
        prompts._around(Tokenizer(models.BPE(vocab={"b": 0}, merges=[])))
    own = one.tokenizer.backend_tokenizer
    first, last = prompts._around(own)
    assert own.encode(["a"], is_pretokenized=True).ids[len(first) : -len(last) or None] == list(
        WordTokens(own).tokenize(["a"])[0]
    )


def test_labels_with_markers_are_refused_by_name(library: Library) -> None:
    builder = library.builder()
    special = set(library.tokenizer.all_special_tokens) | {library.config.class_token, library.config.separator_token}
    for marker in special:
        for label in (marker, f"a {marker} b", f"a{marker}b"):
            with pytest.raises(LabelProblem, match="means something to the model") as refused:
                builder.labels(("fine", label))
            assert refused.value.position == 1
            assert marker in str(refused.value)


def test_a_character_that_the_vocabulary_lacks_is_no_marker(library: Library) -> None:
    builder = library.builder()
    for label in ("𓀀", "\U0001f9ff\U0001fae0", "ꙮ"):
        assert made(builder, "some text", ("x", label)) == library.positions("some text", ("x", label))


def config_of(tokenizer: Tokenizer) -> GlinerConfig:
    """Return what an artifact says of a tokenizer with the markers <<ENT>> and <<SEP>>."""
    ids = [tokenizer.encode(marker).ids[0] for marker in ("<<ENT>>", "<<SEP>>")]
    return GlinerConfig(
        hidden_size=8,
        max_width=4,
        max_words=50,
        class_token="<<ENT>>",
        class_token_id=ids[0],
        separator_token="<<SEP>>",
        separator_token_id=ids[1],
        lstm_layers=0,
        projection=False,
    )


WORD_LEVEL = models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]")
UNIGRAM = models.Unigram([("[UNK]", 0.0), ("a", -1.0), ("b", -1.0), ("\u2581", -2.0)], 0, byte_fallback=False)
BPE = models.BPE(vocab={"[UNK]": 0, "a": 1, "b": 2}, merges=[])


@pytest.mark.parametrize(
    ("model", "unknown"), [(WORD_LEVEL, (0,)), (UNIGRAM, (0,)), (BPE, None)], ids=["WordLevel", "Unigram", "BPE"]
)
def test_a_label_may_have_characters_that_become_the_unknown_token_but_not_spell_it(
    model: models.Model, unknown: Tokens | None
) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]", "<<ENT>>", "<<SEP>>"])
    tokenizer.add_tokens([AddedToken("euro", special=False)])
    config = config_of(tokenizer)
    builder = PromptBuilder(tokenizer, config)
    ent, sep, euro = config.class_token_id, config.separator_token_id, tokenizer.token_to_id("euro")
    # a token that was added and is not special is a word like any other
    assert builder.labels(("a", "euro")).tokens == (ent, 1, ent, euro, sep)
    assert builder.labels(("a", "euro")).positions.tolist() == [0, 2]
    if unknown is None:
        # a model without an unknown token drops what it does not know
        with pytest.raises(LabelProblem, match="leaves nothing of the label 'z'"):
            builder.labels(("z",))
    else:
        assert builder.labels(("z",)).tokens == (ent, *unknown, sep)
    for marker in ("[UNK]", "<<ENT>>", "<<SEP>>"):
        with pytest.raises(LabelProblem) as refused:
            builder.labels(("a", marker))
        assert str(refused.value) == f"the label {marker!r} holds {marker!r}, which means something to the model"
        assert refused.value.position == 1


def test_markers_in_texts_are_ordinary_words(library: Library) -> None:
    text = "a <<ENT>> b <<SEP>> [SEP] <eos> </s> [UNK] c"
    assert made(library.builder(), text, ("x",)) == library.positions(text, ("x",))


def test_a_tokenizer_that_is_not_the_configuration_s_is_refused(one: Library) -> None:
    tokenizer = one.tokenizer.backend_tokenizer
    for wrong in (
        replace(one.config, class_token_id=7),
        replace(one.config, separator_token_id=7),
        replace(one.config, class_token="[NOT THERE]"),
    ):
        with pytest.raises(ValueError, match=r"config\.json says"):
            PromptBuilder(tokenizer, wrong)
    with_word = Tokenizer.from_str(tokenizer.to_str())
    with_word.add_special_tokens([AddedToken("ENT", special=True, normalized=False)])
    number = with_word.token_to_id("ENT")
    assert number is not None
    with pytest.raises(ValueError, match="is a word"):
        PromptBuilder(with_word, replace(one.config, class_token="ENT", class_token_id=number))


def test_settings_of_the_tokenizer_for_batches_change_no_prompt(one: Library) -> None:
    tokenizer = Tokenizer.from_str(one.builder().word_tokens._tokenizer.to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    for text in ("Ann met Bo in Rome.", "supercalifragilistic" * 9):
        assert made(PromptBuilder(tokenizer, one.config), text, LABELS[1]) == made(one.builder(), text, LABELS[1])


def counting() -> WordTokens:
    """Return the tokens of a tokenizer with one token per character."""
    letters = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz0123456789")}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return WordTokens(tokenizer)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_CACHED_WORDS", 50)
    tokens = counting()
    plain = counting()
    for start in range(0, 2000, 10):
        batch = [f"w{number}" for number in range(start, start + 10)] + ["again", "x" * 65, "y" * 17]
        assert tokens(batch) == plain.tokenize(batch)
    assert len(tokens._young) < 50
    assert len(tokens._old) < 70
    assert "again" in tokens._young | tokens._old
    assert not {"x" * 65, "y" * 17} & (tokens._young | tokens._old).keys()


class Seen(WordTokens):
    """Word tokens that note what the tokenizer gets; a word has a token for each y, and at least one."""

    def __init__(self) -> None:
        super().__init__(Tokenizer(models.BPE()))
        self.seen: list[str] = []

    def tokenize(self, words: Sequence[str]) -> list[Tokens]:
        assert words
        self.seen += words
        return [(len(word),) * max(1, word.count("y")) for word in words]

    def new(self, *words: str) -> list[str]:
        """Return which of the words the tokenizer gets."""
        self.seen = []
        assert self(words) == [(len(word),) * max(1, word.count("y")) for word in words]
        return self.seen


def test_the_tokenizer_gets_each_word_once() -> None:
    tokens = Seen()
    assert tokens.new("a", "bb", "a") == ["a", "bb"]
    assert tokens.new("a", "ccc", "bb", "ccc") == ["ccc"]
    assert tokens.new("dd") == ["dd"]
    assert tokens.new("ccc", "bb", "a", "dd") == []


def test_words_of_64_characters_and_16_tokens_are_remembered_and_longer_ones_are_not() -> None:
    tokens = Seen()
    kept, longer = ("x" * 64, "y" * 16), ("x" * 65, "y" * 17)
    assert tokens.new(*kept, *longer) == [*kept, *longer]
    assert tokens.new(*kept, *longer) == [*longer]


def test_words_are_forgotten_when_two_generations_came_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_CACHED_WORDS", 3)
    tokens = Seen()
    assert tokens.new("a", "bb", "cc") == ["a", "bb", "cc"]
    # the next generation takes over what is used
    assert tokens.new("a", "dd") == ["dd"]
    assert tokens.new("ee") == ["ee"]
    assert tokens.new("a", "dd", "ee") == []
    assert tokens.new("bb") == ["bb"]


def test_32768_words_are_a_generation() -> None:
    tokens = Seen()
    size = 32_768
    first, second = ([f"{start + number:x}" for number in range(size)] for start in (0, size))
    assert tokens.new(*first) == first
    assert tokens.new(*second[:-1]) == second[:-1]
    assert tokens.new(first[0]) == []
    assert tokens.new(first[1]) == [first[1]]


def test_label_lists_are_remembered_where_they_are_short_and_few(monkeypatch: pytest.MonkeyPatch, one: Library) -> None:
    builder = one.builder()
    short, long = ("person", "company"), tuple(f"{'label ' * 40}{number}" for number in range(20))
    assert builder.labels(short) is builder.labels(short)
    assert builder.labels(long) is not builder.labels(long)
    # the longest list that is remembered has 4096 characters
    at_limit = ("x" * 4_000, "y" * 96)
    assert builder.labels(at_limit) is builder.labels(at_limit)
    over = ("x" * 4_000, "y" * 97)
    assert builder.labels(over) is not builder.labels(over)
    # 256 lists are remembered: two of those above and 254 others; one more replaces all of them
    remembered = builder.labels(short)
    for number in range(254):
        builder.labels((f"one of {number}",))
    assert builder.labels(short) is remembered
    builder.labels(("one more",))
    assert builder.labels(short) is not remembered
    monkeypatch.setattr(prompts, "_CACHED_LABEL_LISTS", 5)
    for number in range(50):
        builder.labels((f"label {number}",))
        assert len(builder._labels) <= 5


def test_threads_share_what_is_remembered(monkeypatch: pytest.MonkeyPatch, one: Library) -> None:
    monkeypatch.setattr(prompts, "_CACHED_WORDS", 40)
    builder = one.builder()
    texts = [" ".join(f"word{number % 97} x{number}" for number in range(start, start + 40)) for start in range(60)]
    expected = [library_prompt for library_prompt in (one.positions(text, ("a", "b")) for text in texts)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                assert list(pool.map(lambda text: made(builder, text, ("a", "b")), texts)) == expected
    finally:
        sys.setswitchinterval(interval)
