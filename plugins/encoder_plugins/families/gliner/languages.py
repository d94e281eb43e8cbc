"""The languages of the ``stanza`` splitter. Standard library only: declarations use them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# what langdetect calls a language, in gliner's form: how stanza calls it, and its default package in stanza 1.15
PACKAGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "af": ("af", "afribooms"),
        "ar": ("ar", "padt"),
        "bg": ("bg", "btb"),
        "ca": ("ca", "ancora"),
        "cs": ("cs", "pdtc"),
        "cy": ("cy", "ccg"),
        "da": ("da", "ddt"),
        "de": ("de", "combined"),
        "el": ("el", "gdt"),
        "en": ("en", "combined"),
        "es": ("es", "combined"),
        "et": ("et", "edt"),
        "fa": ("fa", "perdt"),
        "fi": ("fi", "combined"),
        "fr": ("fr", "combined"),
        "he": ("he", "combined"),
        "hi": ("hi", "hdtb"),
        "hr": ("hr", "set"),
        "hu": ("hu", "szeged"),
        "id": ("id", "gsd"),
        "it": ("it", "combined"),
        "ja": ("ja", "combined"),
        "ko": ("ko", "kaist"),
        "lt": ("lt", "alksnis"),
        "lv": ("lv", "lvtb"),
        "mr": ("mr", "ufal"),
        "nl": ("nl", "alpino"),
        "no": ("nb", "bokmaal"),
        "pa": ("pa", "rang"),
        "pl": ("pl", "pdb"),
        "pt": ("pt", "bosque"),
        "ro": ("ro", "rrt"),
        "ru": ("ru", "syntagrus"),
        "sk": ("sk", "snk"),
        "sl": ("sl", "combined"),
        "sq": ("sq", "combined"),
        "sv": ("sv", "talbanken"),
        "ta": ("ta", "ttb"),
        "te": ("te", "mtg"),
        "th": ("th", "tud"),
        "tr": ("tr", "imst"),
        "uk": ("uk", "iu"),
        "ur": ("ur", "udtb"),
        "vi": ("vi", "vtb"),
        "zh": ("zh-hans", "gsdsimp"),
    }
)

LANGUAGES = tuple(PACKAGES)
"""The languages that langdetect knows and stanza has a tokenizer for."""
