"""Text to words by stanza's tokenizers, as the library's ``stanza`` splitter uses them, with models that prep pinned.

Prep, the recorder and the server import it: standard library only, but for what needs stanza and langdetect themselves.

gliner guesses a text's language with langdetect and takes stanza's default tokenizer of that language. Three things are done
for it here, for the recorder and for the server alike:

- The models are those that the preparation names, and nothing is downloaded: a text in another language gets the fallback.
- Words that a text does not have as they are (French *du*, which stanza reads as *de* and *le*) have no offsets in stanza, and the
  library would answer with none. They get those of the token that they are part of.
- A word that spells one of the model's markers is split further: the library would take it for a label of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NamedTuple

from encoder_plugins.errors import SourceFileNotFound, Unsupported
from encoder_plugins.families.gliner import words as splitter
from encoder_plugins.families.gliner.languages import PACKAGES
from encoder_plugins.families.gliner.words import Split

SPLITTER = "stanza"
"""What ``words_splitter_type`` has to say."""

FOLDER = "words"
"""The folder of an artifact's model folder that stanza takes its models from."""

RESOURCES = "resources.json"
"""The file in it that lists the models."""

DEFAULT = "en"
"""The library's own fallback."""

LONGEST_RUN = 4_000
"""Characters of ASCII without white space that stanza may get in one run; in several, as many as take it no longer."""

_REPOSITORY = "stanza-"
_TOKENIZE, _EXPAND = "tokenize", "mwt"
# what stanza's expression for addresses may pass over in one go: it begins anew at each character, so that a run takes the square of its
# length, 0.25 s for the longest, and holds Python's lock meanwhile. White space behind a backslash can be part of an address.
_RUN = re.compile(r"(?:\\[\x01-\x09\x0b\x0c\x0e-\x7f]|[\x01-\x08\x0b\x0c\x0e-\x1f\x21-\x7f])++")


class Word(NamedTuple):
    """A word, and where it is in the text, with the names that stanza's words have."""

    text: str
    start_char: int
    end_char: int


def fallback(languages: Sequence[str]) -> str:
    """Return the language whose tokenizer gets texts of other languages: the library's own if it is there, else the first."""
    return DEFAULT if DEFAULT in languages else languages[0]


def code_of(repository: str) -> str | None:
    """Return stanza's code of the language whose models an auxiliary repository has; None for another repository."""
    name = PurePosixPath(repository).name
    return name.removeprefix(_REPOSITORY) if name.startswith(_REPOSITORY) else None


def separate(auxiliary: Mapping[str, Path], languages: Sequence[str]) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the folders of the models by stanza's code of their language, and the other auxiliary repositories.

    Raises:
        SourceFileNotFound: A language's repository is missing.
        Unsupported: There is one of a language that is not requested, or two of the same.
    """
    wanted = {PACKAGES[language][0]: language for language in languages}
    models: dict[str, Path] = {}
    others: dict[str, Path] = {}
    for name, folder in auxiliary.items():
        code = code_of(name)
        if code is None:
            others[name] = folder
        elif code not in wanted:
            raise Unsupported(
                f"the auxiliary repository {name} has words of {code}, and the parameter languages is"
                f" {', '.join(languages) or 'not set'}: remove one, or add the other"
            )
        elif code in models:
            raise Unsupported(f"the auxiliary repository {name} is the second one with words of {code}")
        else:
            models[code] = folder
    for code, language in wanted.items():
        if code not in models:
            repository = f"stanfordnlp/{_REPOSITORY}{code}"
            raise SourceFileNotFound(
                f"the parameter languages has {language}, and no auxiliary repository its tokenizer: pin it, with"
                f" source.auxiliary: [{{repo: {repository}, revision: <commit>}}], or --auxiliary {repository}@<commit>"
            )
    return models, others


def files(repository: str, paths: Iterable[str]) -> list[str]:
    """Return which files of a language's repository are taken: the default tokenizer, and what expands its multi-word tokens.

    Raises:
        SourceFileNotFound: The tokenizer is not there.
        Unsupported: It is of a language that is not served.
    """
    code = code_of(repository)
    package = next((package for known, package in PACKAGES.values() if known == code), None)
    if package is None:
        raise Unsupported(f"the auxiliary repository {repository} is of a language that langdetect does not know")
    there = set(paths)
    # stanza takes the tokenizer without a character language model where there is a choice
    for name in (package, f"{package}_nocharlm"):
        if (tokenizer := f"models/{_TOKENIZE}/{name}.pt") in there:
            expansion = f"models/{_EXPAND}/{package}.pt"
            return [tokenizer, *({expansion} & there)]
    raise SourceFileNotFound(
        f"the auxiliary repository {repository} lacks models/{_TOKENIZE}/{package}.pt, stanza's default tokenizer"
    )


def resources(folders: Mapping[str, Path]) -> tuple[dict[str, Path], str]:
    """Return the files of stanza's folder of models by their path in it, and the content of its ``resources.json``.

    Args:
        folders: What prep took of each language's repository, by stanza's code.
    """
    taken: dict[str, Path] = {}
    about: dict[str, Any] = {}
    for code, folder in folders.items():
        packages: dict[str, str] = {}
        for path in sorted((folder / "models").rglob("*.pt")):
            kind = path.parent.name
            taken[f"{code}/{kind}/{path.name}"] = path
            packages[kind] = path.stem
        about[code] = {"lang_name": code, "packages": {"default": packages}} | {
            kind: {package: {}} for kind, package in packages.items()
        }
    # as in stanza's own file
    about |= {name: {"alias": code} for name, (code, _) in PACKAGES.items() if code in folders and name != code}
    return taken, json.dumps(about, indent=2, sort_keys=True) + "\n"


class LocatedPipeline:
    """A stanza pipeline whose words all have offsets, and spell no marker."""

    def __init__(self, pipeline: Any, markers: Sequence[str]) -> None:
        self._pipeline = pipeline
        self._marker = re.compile("|".join(map(re.escape, markers)))

    def words(self, text: str) -> list[Word]:
        """Return the words of a text, in order."""
        found: list[Word] = []
        marked = self._marker.search(text) is not None
        for sentence in self._pipeline(text).sentences:
            for token in sentence.tokens:
                for word in token.words:
                    start, end = word.start_char, word.end_char
                    if start is None or end is None:
                        start, end = token.start_char, token.end_char
                    if marked and self._marker.search(text, start, end):
                        found += _spelled(text, start, end)
                    else:
                        found.append(Word(word.text, start, end))
        return found

    def __call__(self, text: str) -> SimpleNamespace:
        """Return what the library reads of a stanza document."""
        return SimpleNamespace(sentences=[SimpleNamespace(words=self.words(text))])


def _spelled(text: str, start: int, end: int) -> list[Word]:
    """Return the words of a part of a text as the whitespace splitter makes them."""
    part = text[start:end]
    parts = splitter.split(part)
    begins = splitter.starts(part, parts)
    return [Word(word, start + begin, start + begin + len(word)) for word, begin in zip(parts, begins, strict=True)]


class StanzaSplitter:
    """Splits the texts of one artifact. For several threads at once."""

    def __init__(self, folder: Path, languages: Sequence[str], markers: Sequence[str]) -> None:
        """Load the tokenizers of ``languages`` from ``folder``, on the CPU.

        Raises:
            ModuleNotFoundError: stanza or langdetect is not installed.
        """
        import langdetect
        import stanza

        # as the library sets it: the same text is always of the same language
        langdetect.DetectorFactory.seed = 42
        # its profiles are loaded on first use, which is not safe in several threads
        langdetect.detect("one")
        self._detect = langdetect.detect
        self._undetected = langdetect.LangDetectException
        self._fallback = fallback(languages)
        self._pipelines = {
            language: LocatedPipeline(
                stanza.Pipeline(
                    PACKAGES[language][0],
                    dir=str(folder),
                    processors=_TOKENIZE,
                    verbose=False,
                    download_method=None,
                    use_gpu=False,
                ),
                markers,
            )
            for language in languages
        }

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that a request may name."""
        return tuple(self._pipelines)

    def split(self, text: str, language: str | None) -> Split:
        """Return the words of a text in ``language``; None has it detected.

        Raises:
            ValueError: stanza cannot split the text, or would take too long.
        """
        if sum((run.end() - run.start()) ** 2 for run in _RUN.finditer(text)) > LONGEST_RUN**2:
            raise ValueError(
                "the text has more letters, digits and signs without white space between them than stanza can search for addresses;"
                f" the limit is a run of {LONGEST_RUN} characters, or several whose squares add up to as much"
            )
        known = language or self._language(text)
        chosen = self._fallback if known is None else known
        try:
            found = self._pipelines[chosen].words(text)
        except Exception as error:
            # a neural tokenizer loses its way in some texts that nobody writes; stanza then raises errors of many types
            raise ValueError(
                f"stanza's tokenizer of {chosen} cannot split the text ({type(error).__name__})"
            ) from error
        return Split(
            words=[word.text for word in found],
            known_places=[(word.start_char, word.end_char) for word in found],
            language=chosen,
            fallback=known is None,
        )

    def _language(self, text: str) -> str | None:
        """Return the language of a text; None for one that is not prepared, or not found."""
        try:
            found = self._detect(text)
        except self._undetected:
            return None
        found = "zh" if found == "zh-cn" else found
        return found if found in self._pipelines else None
