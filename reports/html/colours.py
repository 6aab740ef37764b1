"""Colours that people who see few colours can tell apart, with ink that can be read on them."""

from __future__ import annotations

from itertools import pairwise

RIGHT = "#4c8dc9"
"""Blue: right, or nothing lost."""
WRONG = "#d55e00"
"""Vermilion: wrong."""
DUE = "#8c6bb1"
"""Violet: due and not picked."""
PLAIN = "#9aa0a6"
"""Grey: neither."""

_DISTINCT = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's palette (2008), reordered so that neighbours differ in lightness too."""
_STEPS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""Cividis (Nunez, Anderton and Renslow 2018): even steps in lightness for any kind of sight."""
_LOST = ((0.0, "#8c2d04"), (0.5, "#e6550d"), (0.9, "#fdae6b"), (1.0, "#fee6ce"))
"""Overlap below 1, from nothing found to almost all found."""


def series(number: int) -> tuple[str, ...]:
    """Return colours for ``number`` things in order: distinct ones, or steps where there are many.

    >>> series(2)
    ('#0072b2', '#e69f00')
    """
    if number <= len(_DISTINCT):
        return _DISTINCT[:number]
    return tuple(_step(place / (number - 1)) for place in range(number))


def _step(value: float) -> str:
    last = len(_STEPS) - 1
    place = min(int(value * last), last - 1)
    return _mixed(_STEPS[place], _STEPS[place + 1], value * last - place)


def overlap_colour(value: float) -> str:
    """Return the colour of an overlap: blue for all found, else from pale orange to dark brown."""
    if value >= 1.0:
        return "#9ecae1"
    for (low, first), (high, second) in pairwise(_LOST):
        if value <= high:
            return _mixed(first, second, (max(value, 0.0) - low) / (high - low))
    return _LOST[-1][1]


def _mixed(first: str, second: str, part: float) -> str:
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in pairs)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def ink_on(colour: str) -> str:
    """Return black or white, whichever has the greater contrast by the rule of WCAG 2.

    >>> ink_on("#f0e442"), ink_on("#00224e")
    ('#000000', '#ffffff')
    """
    light = luminance(colour)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour as WCAG 2 defines it, from 0 to 1."""
    parts = []
    for channel in _channels(colour):
        value = channel / 255
        parts.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
