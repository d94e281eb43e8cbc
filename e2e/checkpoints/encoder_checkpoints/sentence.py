"""The words from which tests make texts of any length."""

WORDS = [
    "Ada",
    "Lovelace",
    "met",
    "Charles",
    "Babbage",
    "in",
    "London",
    ",",
    "and",
    "wrote",
    "notes",
    "on",
    "his",
    "engine",
    "for",
    "Scientific",
    "Memoirs",
]
