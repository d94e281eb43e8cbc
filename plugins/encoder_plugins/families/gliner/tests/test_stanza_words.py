"""Words of many languages by stanza's tokenizers, tiny ones that stanza trained, against the library with the same ones."""

from __future__ import annotations

import importlib.metadata
import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from encoder_plugins.artifact import manifest as artifact
from encoder_plugins.artifact import reference as references
from encoder_plugins.errors import InvalidRequest, PickleRefused, SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import languages, stanza_words
from encoder_plugins.families.gliner.conversion import write_words
from encoder_plugins.families.gliner.parameters import choices
from encoder_plugins.families.gliner.parity import PARITY
from encoder_plugins.families.gliner.processor import GlinerProcessor
from encoder_plugins.families.gliner.stanza_words import StanzaSplitter
from encoder_plugins.families.gliner.tests.library import Library, built, call
from encoder_plugins.families.gliner.tests.test_gliner_processor import LABELS, answered, processor, refusal
from encoder_plugins.prep.request import Auxiliary
from encoder_plugins.prep.tests.changed_checkpoint import change, nothing, prepared

with warnings.catch_warnings():
    # torch deprecates what transformers does at import
    warnings.simplefilter("ignore")

    from encoder_checkpoints import stanza as builder

# stanza, the library and torch warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")

PLUGIN = "mt5_gliner"
LANGUAGES = ("fr", "en", "ja")
PARAMETERS: dict[str, Any] = {"wordsSplitter": "stanza", "languages": LANGUAGES}
ENGLISH = "Tim Cook leads Apple in Cupertino. Anna Smith didn't visit London in June."
FRENCH = "Marie Curie vient du nord des Alpes. Nous sommes allés au marché avec nos amis hier soir."
JAPANESE = "東京は日本の首都です。田中さんは大阪に住んでいます。"
RUSSIAN = "Где живёт сейчас Анна Каренина, и куда она едет завтра утром?"
TEXTS = (
    ENGLISH,
    FRENCH,
    JAPANESE,
    RUSSIAN,
    "Anna Smith leads<<ENT>> the Bank <<SEP>> in London </s> !",
    " Tim\r\n\r\nCook  leads\tApple\u2028in \u0085 London .",
    "x" * 1500,
    "a\x00\x97b \ufeff 👩‍🚀 İ",
    "3.14 !!!",
    " \n\t",
)
INPUTS: tuple[dict[str, Any], ...] = tuple(
    {"id": name, "text": text, "labels": LABELS, "threshold": threshold, "flat_ner": flat, "multi_label": several}
    for name, text in (("french", FRENCH), ("japanese", JAPANESE), ("russian", RUSSIAN))
    for name, threshold, flat, several in ((name, 0.5, True, False), (f"{name}-all", 0.1, False, True))
)


@dataclass(frozen=True)
class Published:
    """A checkpoint with tokenizers of stanza, and what prep makes of them."""

    library: Library
    source: Path
    repositories: dict[str, Path]
    output: Path

    @property
    def auxiliary(self) -> tuple[Auxiliary, ...]:
        return tuple(Auxiliary(str(folder)) for folder in self.repositories.values())

    @cached_property
    def processor(self) -> GlinerProcessor:
        return processor(Library(self.output / "model"))


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return builder.build(tmp_path_factory.mktemp("stanza"))


@pytest.fixture(scope="module")
def published(repositories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp(PLUGIN)
    # the library would download models for a configuration with stanza; what stands for the engine sees tokens only
    library = built(PLUGIN, folder / "whitespace", for_prep=True)
    source = built(PLUGIN, folder / "source", for_prep=True).folder
    change(source, words_splitter_type="stanza")
    found = Published(library, source, repositories, folder / "key")
    prepared(
        PLUGIN,
        source,
        found.output,
        auxiliary=found.auxiliary,
        parameters=PARAMETERS,
        allow_pickle=True,
        inputs=INPUTS,
    )
    return found


def by_library(repositories: dict[str, Path], text: str, *, bare: bool = False) -> list[tuple[str, Any, Any]]:
    folders = tuple((language, str(folder)) for language, folder in repositories.items())
    found: list[tuple[str, Any, Any]] = call("split_by_stanza", folders, LANGUAGES, text, bare=bare)
    return found


def test_words_and_offsets_are_the_library_s(repositories: dict[str, Path], tmp_path: Path) -> None:
    write_words(repositories, tmp_path)
    splitter = StanzaSplitter(tmp_path, LANGUAGES, ("<<ENT>>", "<<SEP>>"))
    own: dict[str, list[str]] = {}
    for text in TEXTS:
        found = splitter.split(text, None)
        places = found.places(text)
        own[text] = found.words
        assert [(word, *place) for word, place in zip(found.words, places, strict=True)] == by_library(
            repositories, text
        )
        assert all(0 <= start < end <= len(text) for start, end in places)
        if "<<" in text:
            continue
        # what is added to the library's own words are offsets, where it has none
        for (word, start, end), mine, place in zip(
            by_library(repositories, text, bare=True), found.words, places, strict=True
        ):
            assert word == mine
            assert (start, end) in (place, (None, None))
    assert own[FRENCH][:7] == ["Marie", "Curie", "vient", "de", "le", "nord", "de"]
    assert "n't" in own[ENGLISH]
    assert own[JAPANESE][:4] == ["東京", "は", "日本", "の"]
    assert not any("<<ENT>>" in word or "<<SEP>>" in word for word in own[TEXTS[4]])
    detected = {text: splitter.split(text, None) for text in (ENGLISH, FRENCH, JAPANESE, RUSSIAN, "3.14 !!!")}
    assert [(found.language, found.fallback) for found in detected.values()] == [
        ("en", False),
        ("fr", False),
        ("ja", False),
        # as in the library, where there is English
        ("en", True),
        ("en", True),
    ]
    named = splitter.split(ENGLISH, "fr")
    assert (named.language, named.fallback) == ("fr", False)


def test_a_prepared_checkpoint_answers_as_the_library(published: Published) -> None:
    manifest = artifact.verify(published.output)
    assert manifest.source["parameters"] == {"wordsSplitter": "stanza", "languages": ["fr", "en", "ja"]}
    assert "changed" not in manifest.source
    assert len(manifest.source["auxiliary"]) == 3
    assert "model/words/ja/tokenize/combined.pt" in {file.path for file in manifest.files}
    reference = references.read(published.output)
    about = json.loads((published.output / "reference" / "about.json").read_bytes())
    assert about["stanza"] == importlib.metadata.version("stanza")
    assert about["langdetect"] == importlib.metadata.version("langdetect")
    entities: dict[str, list[Any]] = {}
    for case in reference.cases:
        data = PARITY.body([case], PARITY.variants()[0])["data"]
        answer = answered(published.library, published.processor, **data)
        results = answer.get("results", [answer])
        got = [entity for result in results for entity in result["entities"]]
        compared = PARITY.compare(case, got, reference.expected[case["id"]])
        assert not compared.notes, case["id"]
        assert compared.metrics.get("score_max", 0.0) < 1e-5
        assert compared.metrics.get("decoded_shift", 0.0) < 1e-5
        if case["measures"] == "entities":
            entities[case["id"]] = got
            names = ("start", "end", "text", "label")
            assert [[each[name] for name in names] for each in got] == [
                [each[name] for name in names] for each in case["entities"]
            ]
            assert {result["language"] for result in results} <= {"fr", "en", "ja"}
    # words that share a place, and words of a language without spaces, are among the entities
    borders = {
        word for entity in entities["french-all"] for word in (entity["text"].split()[0], entity["text"].split()[-1])
    }
    assert borders & {"du", "des", "au"}
    assert any(len(entity["text"]) < 10 for entity in entities["japanese-all"])


def test_a_request_may_name_its_language(published: Published) -> None:
    ours = published.processor
    by_name = answered(published.library, ours, text=FRENCH, labels=LABELS, threshold=0.1, language="fr")
    assert by_name == answered(published.library, ours, text=FRENCH, labels=LABELS, threshold=0.1)
    assert by_name["language"] == "fr"
    assert "language_fallback" not in by_name
    other = answered(published.library, ours, texts=[FRENCH, RUSSIAN], labels=LABELS, overflow="chunk")
    assert [result.get("language_fallback", False) for result in other["results"]] == [False, True]
    assert refusal(ours, text=FRENCH, labels=LABELS, language="de") == (
        "data.language",
        "data.language: the language is 'de'; supported: fr, en, ja",
    )


def test_a_text_that_stanza_cannot_split_is_refused(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(text: str) -> None:
        raise AssertionError

    ours = published.processor
    assert ours._stanza is not None
    monkeypatch.setattr(ours._stanza._pipelines["en"], "words", lost)
    with pytest.raises(InvalidRequest, match="tokenizer of en cannot split the text") as caught:
        answered(published.library, ours, texts=["one", "two"], labels=LABELS, language="en")
    assert caught.value.param == "data.texts[0]"


@pytest.mark.parametrize(
    ("runs", "longer"),
    [
        ("x" * 4_000, "x" * 4_001),
        # 2 828 squared, twice
        ("a@" * 1_414 + "\n" + "-" * 2_828, "a@" * 1_414 + "\n" + "-" * 2_829),
        # white space behind a backslash is part of an address in quotes
        ('\\" ' * 4_000 + "é", r"\"\ " * 1_001),
        ("東" * 9_000, "x" * 200_000),
    ],
)
def test_a_text_in_which_stanza_searches_addresses_for_too_long_is_refused(
    published: Published, monkeypatch: pytest.MonkeyPatch, runs: str, longer: str
) -> None:
    ours = published.processor
    assert ours._stanza is not None
    monkeypatch.setattr(ours._stanza._pipelines["en"], "words", lambda text: [])
    answered(published.library, ours, texts=["one", runs], labels=LABELS, language="en")
    with pytest.raises(
        InvalidRequest, match="the limit is a run of 4000 characters, or several whose squares"
    ) as caught:
        answered(published.library, ours, texts=["one", longer], labels=LABELS, language="en")
    assert caught.value.param == "data.texts[1]"


def test_prep_refuses_what_is_missing_by_name(published: Published, tmp_path: Path) -> None:
    def prep(auxiliary: tuple[Auxiliary, ...], *, allow_pickle: bool = True, **parameters: Any) -> None:
        prepared(
            PLUGIN,
            published.source,
            tmp_path / "key",
            auxiliary=auxiliary,
            parameters=parameters or PARAMETERS,
            allow_pickle=allow_pickle,
            record=nothing,
        )

    with pytest.raises(SourceFileNotFound, match="--auxiliary stanfordnlp/stanza-ja@<commit>"):
        prep(published.auxiliary[:2])
    with pytest.raises(PickleRefused, match=r"models/tokenize/combined\.pt"):
        prep(published.auxiliary, allow_pickle=False)
    with pytest.raises(Unsupported, match=r"stanza-ja has words of ja, and the parameter languages is fr, en"):
        prep(published.auxiliary, wordsSplitter="stanza", languages=("fr", "en"))
    with pytest.raises(Unsupported, match=r"words_splitter_type is \"stanza\""):
        prepared(PLUGIN, published.source, tmp_path / "key", record=nothing)
    broken = tmp_path / "stanza-ja" / "models" / "tokenize" / "combined.pt"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no model")
    with pytest.raises(Unsupported, match=r"stanza's model ja/tokenize/combined\.pt"):
        prep((*published.auxiliary[:2], Auxiliary(str(tmp_path / "stanza-ja"))))
    assert not (tmp_path / "key").exists()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"wordsSplitter": "stanza"}, "parameters.languages: is not set"),
        ({"languages": ("de",)}, "parameters.languages: is set, and parameters.wordsSplitter is not set"),
        ({"languages": ("de",), "wordsSplitter": "whitespace"}, "wordsSplitter is whitespace"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        choices(parameters)


def test_the_default_tokenizers_are_stanza_s() -> None:
    packages = call("stanza_packages")
    assert {code: package for code, package in languages.PACKAGES.values()} == {
        code: packages[code] for code, _ in languages.PACKAGES.values()
    }
    listing = ["models/tokenize/set_nocharlm.pt", "models/tokenize/set_charlm.pt", "models/mwt/set.pt", "README.md"]
    assert stanza_words.files("any/stanza-hr", listing) == [listing[0], listing[2]]
    with pytest.raises(SourceFileNotFound, match=r"lacks models/tokenize/gsdsimp\.pt"):
        stanza_words.files("any/stanza-zh-hans", listing)
    with pytest.raises(Unsupported, match="langdetect does not know"):
        stanza_words.files("any/stanza-got", listing)
    assert stanza_words.fallback(("de", "en")) == "en"
    assert stanza_words.fallback(("de", "ja")) == "de"
