"""Foreign text as Markdown that shows it and never obeys it."""

from __future__ import annotations

import re

from markupsafe import Markup

from reports.text import visible, visible_lines

_SPECIAL = re.compile(r"[&<>|`*\[\]\\~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINK = re.compile(r"https://[A-Za-z0-9._~/?#=&%+:@-]+")
_FILE = re.compile(r"[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*")
_NOTHING = "-"


def is_link(text: str) -> bool:
    """Tell whether text is a plain https address, fit to be followed."""
    return _LINK.fullmatch(text) is not None


def is_file(path: str) -> bool:
    """Tell whether text is a plain relative path that stays in its folder."""
    return _FILE.fullmatch(path) is not None and ".." not in path.split("/")


def markdown_text(text: str) -> Markup:
    """Return text as one line of Markdown prose, good in table cells, lists and headings.

    Special characters become numeric character references, which by the CommonMark rules never
    start a structure. The line must not come first in a block, where a leading ``#`` would count.
    """
    escaped = _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", visible(text))
    return _verbatim(escaped or _NOTHING)


def markdown_code(text: str) -> Markup:
    """Return text as a code span; one with pipes or backticks is shown as escaped prose instead.

    A pipe inside a code span still ends a table cell, and its escape differs inside and outside of
    tables, so such a span cannot be right in both.
    """
    line = visible(text)
    if line in ("", _NOTHING) or "|" in line or "`" in line:
        return markdown_text(line)
    return _verbatim(f"`{line}`")


def markdown_link(text: str) -> Markup:
    """Return a plain https address as a link, any other text as code."""
    return _verbatim(f"<{text}>") if is_link(text) else markdown_code(text)


def markdown_file(path: str) -> Markup:
    """Return the relative path of a file of the run as a link; an odd one is shown as code."""
    return _verbatim(f"[`{path}`]({path})") if is_file(path) else markdown_code(path)


def markdown_fence(text: str, language: str = "text", max_lines: int = 40) -> Markup:
    """Return text as a fenced block that the text itself cannot close; the last lines are kept."""
    lines = visible_lines(text.rstrip("\n"))
    if len(lines) > max_lines:
        lines = [f"... {len(lines) - max_lines} lines before", *lines[-max_lines:]]
    body = "\n".join(lines)
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return _verbatim(f"{fence}{language}\n{body}\n{fence}")


def finalize(value: object) -> Markup:
    """Escape whatever a template prints, unless one of the functions above has made it."""
    return value if isinstance(value, Markup) else markdown_text(str(value))


def _verbatim(text: str) -> Markup:
    return Markup(text)  # noqa: S704 (the callers have escaped every foreign character)
