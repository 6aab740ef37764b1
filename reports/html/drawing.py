"""Figures as plain data: shapes with coordinates, before any markup."""

from __future__ import annotations

from dataclasses import dataclass

CHARACTER_WIDTH = 6.6
"""Width of a character of the figures' text, in the figures' units; a little generous."""
TEXT_HEIGHT = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A rectangle.

    Attributes:
        fill: Colour, or empty for an outline alone.
        hatched: Drawn over with lines, for what is there but not real, such as padding.
        title: Exact values, shown while the pointer rests on it.
        text: Written inside where it fits.
    """

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    ink: str = "#000000"
    hatched: bool = False
    title: str = ""
    text: str = ""

    @property
    def fits(self) -> bool:
        """True when the text fits into the rectangle."""
        return bool(self.text) and len(self.text) * CHARACTER_WIDTH <= self.width + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Text beside a shape; ``anchor`` is ``start``, ``middle`` or ``end``."""

    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A point of kind ``dot``, ``cross`` or ``ring``: told apart by shape, not by colour alone."""

    x: float
    y: float
    kind: str
    fill: str
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One entry of a figure's legend."""

    text: str
    fill: str = ""
    hatched: bool = False
    mark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A figure.

    Attributes:
        title: What it shows.
        says: The same for somebody who does not see it, with its main numbers.
        note: What is left out or drawn together, empty where nothing is.
    """

    title: str
    says: str
    width: float
    height: float
    boxes: tuple[Box, ...] = ()
    labels: tuple[Label, ...] = ()
    marks: tuple[Mark, ...] = ()
    rules: tuple[Rule, ...] = ()
    keys: tuple[Key, ...] = ()
    note: str = ""
