"""The small vocabulary that task packs draw from."""

import random

NAMES = ("anna", "bruno", "clara", "david", "emma", "felix", "greta", "hugo", "irene", "jonas", "karin", "lukas")
THINGS = (
    "apple",
    "bread",
    "candle",
    "drum",
    "engine",
    "flower",
    "guitar",
    "hammer",
    "island",
    "jacket",
    "kettle",
    "lamp",
)
PLACES = ("garden", "harbour", "kitchen", "library", "market", "office", "station", "theatre", "village", "workshop")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "brown", "white")
MONTHS = ("january", "march", "april", "june", "august", "october", "november")


def some(rng: random.Random, words: tuple[str, ...], count: int) -> list[str]:
    """`count` different ones."""
    return rng.sample(words, count)


def sentence(rng: random.Random) -> str:
    """A short one, without its full stop."""
    return f"The {rng.choice(COLOURS)} {rng.choice(THINGS)} is in the {rng.choice(PLACES)}"
