"""Foreign text made harmless for a terminal, a log or a document."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories that move the cursor, reorder or hide text, or cannot be encoded."""


def escape_hidden(text: str) -> str:
    """Return text with control characters, direction marks and lone surrogates as escapes."""
    # Printable characters are in none of the hidden categories, and most texts hold nothing else.
    if text.isprintable():
        return text
    return "".join(_escape(character) for character in text)


def visible(text: str) -> str:
    """Return text as one line in which nothing is hidden.

    Line ends and tabs become blanks; other control characters, direction marks and lone surrogates
    become backslash escapes, so that a log or terminal shows them instead of obeying them.
    """
    if text.isprintable():
        return text.strip()
    blanks = text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ").replace("\t", " ")
    return escape_hidden(blanks).strip()


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
