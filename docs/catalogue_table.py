"""Write the generated table of ``docs/catalogue.md``: ``python docs/catalogue_table.py``.

``configs/catalogue.yaml`` is the source; a test fails when the page is behind it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "catalogue.md"

# Run as a script, Python looks beside it only.
sys.path.insert(0, str(ROOT))

from harness.scenario.catalogue import Entry, read_catalogue  # noqa: E402

_START, _END = "<!-- entries: generated -->", "<!-- end of entries -->"
_STATES = {
    "run": "runs",
    "kind": "by its kinds",
    "needs_gpu": "needs a GPU",
    "not_applicable": "does not apply",
}


def lines() -> Iterator[str]:
    """Yield the entries, kind by kind; an entry of several kinds stands under its first one."""
    known = read_catalogue()
    for name, kind in known.kinds.items():
        yield ""
        yield f"### `{name}`: {kind.title}"
        yield ""
        yield kind.sign
        yield ""
        own = [entry for entry in known.entries if entry.kinds[0] == name]
        if own:
            yield "| report | what goes wrong | state | scenarios |"
            yield "|---|---|---|---|"
            yield from (_row(entry) for entry in own)
        others = [e.name for e in known.of_kind(name) if e.kinds[0] != name]
        if others:
            yield ("" if own else f"No entry of its own. See {', '.join(others)}.")
            if own:
                yield f"See also {', '.join(others)}."


def _row(entry: Entry) -> str:
    state = _STATES[entry.state]
    if entry.reason:
        state += f": {entry.reason}"
    if entry.gpu:
        state += f"; a GPU adds: {entry.gpu}"
    scenarios = ", ".join(f"`{name}`" for name in entry.scenarios) or "-"
    return f"| [{entry.name}]({entry.links[0]}) | {entry.what} | {state} | {scenarios} |"


def updated(page: str) -> str:
    """Return the page with the table between its marks as it is to be."""
    body = "\n".join((_START, *lines(), "", _END))
    page, count = re.subn(
        f"{re.escape(_START)}.*?{re.escape(_END)}", lambda _: body, page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"expected the marks '{_START}' and '{_END}' once, found {count}")
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
