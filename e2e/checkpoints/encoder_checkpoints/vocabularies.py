"""Trains small tokenizers of the true types, and pads their vocabularies to the true sizes.

The English text behind them is the interpreter's own documentation (``pydoc_data``), so that nothing has to be fetched.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from encoder_plugins.prep import reference_environment

# what pydoc's English lacks: names, and other scripts
SENTENCES = (
    "Tim Cook leads Apple in Cupertino, and Angela Merkel was born in Hamburg on 17 July 1954.",
    "The European Central Bank in Frankfurt raised its rate by 0.25 % in June.",
    "Cristiano Ronaldo dos Santos Aveiro plays as a forward for Al Nassr and captains the Portugal national team.",
    "Zürich, São Paulo und Kraków liegen nicht am Meer; Łódź auch nicht.",
    "Die Straßenbahn fährt über die Brücke, und der Fluß führt Hochwasser.",
    "Le garçon a mangé une crêpe à Orléans où naquit l'été dernier une légende.",
    "Мария Склодовская-Кюри родилась в Варшаве и работала в Париже.",
    "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας και η μεγαλύτερη πόλη της.",
    "東京は日本の首都であり、世界最大級の都市圏を形成している。",
    "北京是中华人民共和国的首都，位于华北平原的北部。",
    "서울은 대한민국의 수도이자 최대 도시이다.",
    "القاهرة هي عاصمة جمهورية مصر العربية وأكبر مدنها.",
    "नई दिल्ली भारत की राजधानी है और यमुना नदी के किनारे बसी है।",
    "İstanbul, Türkiye'nin en kalabalık şehridir; Iğdır ise doğudadır.",
)

# what was learned once of the documentation of Python 3.11.7, by the name of what was trained
LEARNED = Path(__file__).with_name("learned")

# pieces that are learned: few for tiny checkpoints; else so many that a word has about as many tokens as in true ones
_FEW, _MANY = 1600, 12_000


def deberta(size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Train DeBERTa-v3's kind: unigram over metaspace, `[CLS] text [SEP]`, the mask behind all pieces.

    Args:
        size: Entries, the mask included.

    Returns:
        The tokenizer and its tokenizer_config.json.
    """
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    tokenizer = _padded_unigram(_unigram(tuple(specials), "[UNK]", _learned(size)), size - 1)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("\n", " "), normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([*specials, "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    about = {
        "tokenizer_class": "DebertaV2Tokenizer",
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "do_lower_case": False,
        "split_by_punct": False,
        "model_max_length": 1_000_000_000_000_000,
    }
    return tokenizer, about


def deberta_v1(size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Train DeBERTa v1's kind, which is GPT-2's: BPE over bytes, words with a space in front, `[CLS] text [SEP]`."""
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    learned = json.loads(_byte_bpe(tuple(specials), _learned(size)))["model"]
    vocabulary = learned["vocab"]
    for filler in _fillers(size - len(vocabulary)):
        vocabulary[filler] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in learned["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": True,
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "model_max_length": 1_000_000_000_000_000,
    }
    return tokenizer, about


def bert(size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Train BERT's uncased kind: lower-cased pieces of words, `[CLS] text [SEP]`; it was published with padding, as MiniLM's is."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    learned = json.loads(_wordpiece(tuple(specials), _learned(size)))["model"]["vocab"]
    for filler in _fillers(size - len(learned)):
        learned[filler] = len(learned)
    tokenizer = Tokenizer(models.WordPiece(vocab=learned, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    about = {
        "tokenizer_class": "BertTokenizer",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": 512,
    }
    return tokenizer, about


def mmbert(size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Train mmBERT's kind, which is Gemma's: BPE with byte fallback, spaces as ▁ without one in front, `<bos> text <eos>`."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    learned = json.loads(_bpe(tuple(specials), _learned(size)))["model"]
    vocabulary = learned["vocab"]
    for filler in _fillers(size - len(vocabulary)):
        vocabulary[filler] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[tuple(pair) for pair in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos>:0 $A:0 <eos>:0",
        pair="<bos>:0 $A:0 <eos>:0 $B:1 <eos>:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<bos>", "<eos>")],
    )
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "cls_token": "<bos>",
        "sep_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "model_max_length": 8192,
    }
    return tokenizer, about


def mt5(size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Train mT5's kind: unigram over metaspace, `text </s>`, a hundred sentinels at the end of the vocabulary."""
    specials = ["<pad>", "</s>", "<unk>"]
    sentinels = [f"<extra_id_{number}>" for number in range(99, -1, -1)]
    tokenizer = _padded_unigram(_unigram(tuple(specials), "<unk>", _learned(size)), size, sentinels)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.add_special_tokens([*specials, *sentinels])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    about = {
        "tokenizer_class": "T5Tokenizer",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "extra_ids": 100,
        "additional_special_tokens": sentinels,
        "model_max_length": 1_000_000_000_000_000,
    }
    return tokenizer, about


def write(folder: Path, tokenizer: Tokenizer, about: dict[str, Any]) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")


def _learned(size: int) -> int:
    return _MANY if size > 10 * _MANY else _FEW


def _trained_once(name: str, train: Callable[[], Tokenizer]) -> str:
    """Return tokenizer.json as it was trained once: the committed one of small checkpoints, or what one process on this machine trained.

    Training depends on the interpreter's documentation, which differs between its versions, and on the order of hash tables, which
    differs in each process. Checkpoints that tests compare have to share what one process learned, and those of a test whose answers
    depend on scores have to be the same on every machine.
    """
    kind = name.partition(" (")[0].replace(" ", "-")
    committed = LEARNED / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"
    if committed.exists():
        return committed.read_text(encoding="utf-8")
    key = hashlib.sha256(f"{name} {tokenizers.__version__}".encode() + Path(__file__).read_bytes()).hexdigest()[:24]
    place = reference_environment.cache().with_name("vocabularies") / f"{key}.json"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            written = Path(temporary) / place.name
            train().save(str(written), pretty=False)
            # another process may be first
            with suppress(FileExistsError):
                os.link(written, place)
    return place.read_text(encoding="utf-8")


@cache
def _unigram(specials: tuple[str, ...], unknown: str, pieces: int) -> str:
    return _trained_once(f"unigram {specials} {unknown} {pieces}", lambda: _train_unigram(specials, unknown, pieces))


def _train_unigram(specials: tuple[str, ...], unknown: str, pieces: int) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=pieces, special_tokens=list(specials), unk_token=unknown, max_piece_length=12, show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


@cache
def _byte_bpe(specials: tuple[str, ...], pieces: int) -> str:
    return _trained_once(f"byte bpe {specials} {pieces}", lambda: _train_byte_bpe(specials, pieces))


def _train_byte_bpe(specials: tuple[str, ...], pieces: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


@cache
def _wordpiece(specials: tuple[str, ...], pieces: int) -> str:
    return _trained_once(f"wordpiece {specials} {pieces}", lambda: _train_wordpiece(specials, pieces))


def _train_wordpiece(specials: tuple[str, ...], pieces: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=pieces, special_tokens=list(specials), show_progress=False)
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


@cache
def _bpe(specials: tuple[str, ...], pieces: int) -> str:
    return _trained_once(f"bpe {specials} {pieces}", lambda: _train_bpe(specials, pieces))


def _train_bpe(specials: tuple[str, ...], pieces: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern="▁", behavior="merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=[*specials, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _padded_unigram(learned: str, size: int, last: list[str] | None = None) -> Tokenizer:
    """Fill a vocabulary up with pieces that no text holds; ``last`` ends it."""
    model = json.loads(learned)["model"]
    pieces = [(piece, score) for piece, score in model["vocab"]]
    ending = last or []
    worst = min(score for _, score in pieces) - 10
    pieces += [(filler, worst) for filler in _fillers(size - len(pieces) - len(ending))]
    pieces += [(piece, 0.0) for piece in ending]
    tokenizer = Tokenizer.from_str(learned)
    tokenizer.model = models.Unigram(pieces, unk_id=model["unk_id"], byte_fallback=False)
    return tokenizer


def _fillers(count: int) -> Iterator[str]:
    if count < 0:
        raise ValueError(f"the vocabulary is {-count} entries too small for what was learned")
    return (f"\ue000{number}" for number in range(count))


def _corpus() -> Iterator[str]:
    for text in topics.values():
        yield from text.splitlines()
    for _ in range(40):
        yield from SENTENCES
