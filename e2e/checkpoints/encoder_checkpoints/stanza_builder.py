"""Tiny stanza models as its repositories have them, trained by stanza itself in seconds; runs in gliner's environment.

The tokenizers learn the texts below almost by heart, which is what a test needs: words of several characters in Japanese,
French tokens that hold two words, and German and English ones that hold none.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

# sentences of words; a word with "=" is a token of the text, and the words that it stands for
TEXTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "en": (
            "Tim Cook leads Apple in Cupertino .",
            "He does not live there , and Anna Smith didn't=did+n't visit London in June .",
            "The European Central Bank in Frankfurt raised its rate by 0.25 % yesterday .",
            "I think that the weather in this old town is very nice today , do you ?",
        ),
        "fr": (
            "Marie Curie vient du=de+le nord des=de+les Alpes .",
            "Le maire de Paris parle au=à+le peuple et les enfants jouent dans la rue .",
            "Nous sommes allés au=à+le marché avec nos amis hier soir , mais il était fermé .",
        ),
        "ja": (
            "東京 は 日本 の 首都 です 。",
            "田中 さん は 大阪 に 住ん で い ます 。",
            "私 は 昨日 京都 へ 行き まし た 。",
        ),
    }
)
# stanza's code, its default package, and whether words are written without spaces
LANGUAGES: Mapping[str, tuple[str, str, bool]] = MappingProxyType(
    {"en": ("en", "combined", False), "fr": ("fr", "combined", False), "ja": ("ja", "combined", True)}
)
_STEPS = 80


def build(folder: Path) -> None:
    """Write one repository for each of ``LANGUAGES``: ``stanza-<code>`` below ``folder``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            for language, (code, package, joined) in LANGUAGES.items():
                torch.manual_seed(0)
                random.seed(0)
                models = folder / f"stanza-{code}" / "models"
                expansions = _expansions(language)
                _tokenizer(models / "tokenize" / f"{package}.pt", language, joined=joined, several=bool(expansions))
                if expansions:
                    _expander(models / "mwt" / f"{package}.pt", code, expansions)
    finally:
        torch.set_num_threads(threads)


def _tokens(sentence: str) -> list[tuple[str, list[str]]]:
    """Return the tokens of a sentence, and the words of each."""
    found = []
    for part in sentence.split(" "):
        token, _, words = part.partition("=")
        found.append((token, words.split("+") if "+" in words else [token]))
    return found


def _expansions(language: str) -> dict[str, str]:
    return {
        token: " ".join(words) for sentence in TEXTS[language] for token, words in _tokens(sentence) if len(words) > 1
    }


def _labelled(sentences: Sequence[str], *, joined: bool) -> tuple[str, list[int]]:
    """Return a paragraph, and the label of each character: 0 goes on, 1 ends a token, 2 a sentence, 3 a token of several words."""
    text = ""
    labels: list[int] = []
    for sentence in sentences:
        tokens = _tokens(sentence)
        for number, (token, words) in enumerate(tokens):
            attached = joined or token in {".", ",", "?", "。"}
            if text and not attached:
                text, labels = text + " ", [*labels, 0]
            text += token
            end = 2 if number == len(tokens) - 1 else 3 if len(words) > 1 else 1
            labels += [*[0] * (len(token) - 1), end]
    return text, labels


def _tokenizer(path: Path, language: str, *, joined: bool, several: bool) -> None:
    from stanza.models.tokenization.data import TokenizationDataset
    from stanza.models.tokenization.trainer import Trainer
    from stanza.models.tokenization.vocab import Vocab

    sentences = TEXTS[language]
    units = sorted({character for text in sentences for token, _ in _tokens(text) for character in token} | {" "})
    vocab = Vocab([[(unit, 0) for unit in units]], lang=language)
    args: dict[str, Any] = {
        "lang": language,
        "shorthand": f"{language}_tiny",
        "vocab_size": len(vocab),
        "emb_dim": 16,
        "hidden_dim": 32,
        "rnn_layers": 1,
        "conv_res": None,
        "hier_conv_res": False,
        "hierarchical": True,
        "hier_invtemp": 2.0,
        "dropout": 0.0,
        "feat_dropout": 0.0,
        "tok_noise": 0.0,
        "use_mwt": several,
        "feat_dim": 5,
        "feat_funcs": ["space_before", "capitalized", "numeric", "end_of_para", "start_of_para"],
        "lr0": 1e-2,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "use_dictionary": False,
        "num_dict_feat": 0,
        "batch_size": 32,
        "max_seqlen": 1000,
        "skip_newline": joined,
        "charlm_forward_file": None,
    }
    trainer = Trainer(args=args, vocab=vocab, device="cpu")
    order = list(range(len(sentences)))
    for _ in range(_STEPS):
        random.shuffle(order)
        text, labels = _labelled([sentences[number] for number in order], joined=joined)
        data = TokenizationDataset(args, input_text=text, vocab=vocab, evaluation=True)
        (paragraph,) = data.data
        ((unit, _, features, raw),) = data.para_to_sentences(paragraph)
        assert len(raw) == len(labels)
        trainer.update(
            (
                torch.tensor(list(unit))[None],
                torch.tensor(labels)[None],
                torch.tensor(features, dtype=torch.float32)[None],
                [raw],
            )
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer.save(str(path))


def _expander(path: Path, code: str, expansions: Mapping[str, str]) -> None:
    """Write a model that knows its expansions by heart, as stanza has it where a dictionary is enough."""
    from stanza.models.mwt.trainer import Trainer
    from stanza.models.mwt.vocab import Vocab

    vocab = Vocab(list(expansions.items()), code)
    args: dict[str, Any] = {
        "lang": code,
        "shorthand": f"{code}_tiny",
        "dict_only": True,
        "ensemble_dict": False,
        "batch_size": 50,
        "cuda": False,
    }
    trainer = Trainer(args=args, vocab=vocab, device="cpu")
    trainer.train_dict(list(expansions.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer.save(str(path))
