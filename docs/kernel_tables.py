"""Write the generated tables of ``docs/kernels.md``: ``python docs/kernel_tables.py``.

The tables of ``harness.kernels`` are the source; a test fails when the page is behind them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "kernels.md"

# Run as a script, Python looks beside it only.
sys.path.insert(0, str(ROOT))

from harness.kernels import ARCHES, DEFECTS, RELEASES  # noqa: E402
from harness.kernels.namespace import OPERATIONS  # noqa: E402

Rows = Iterable[Iterable[str]]


def spans(releases: Iterable[str]) -> str:
    """Return releases with runs drawn together, such as ``1.24.0 to 1.26.0, 1.28.0``."""
    order = list(RELEASES)
    runs: list[list[str]] = []
    for release in releases:
        if runs and order.index(release) == order.index(runs[-1][-1]) + 1:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def releases() -> Iterator[str]:
    """Yield the table of releases."""
    yield from _table(
        ("release", "mask without offset", "`q_causal_offsets`", "forward heads", "fused heads"),
        (
            (
                version,
                str(release.mask_alignment).replace("_", "-"),
                "yes" if release.accepts_causal_offsets else "no",
                _by_arch({arch: rules.heads for arch, rules in release.forward.items()}),
                _by_arch(dict(release.fused)),
            )
            for version, release in RELEASES.items()
        ),
    )


def wrappers() -> Iterator[str]:
    """Yield the table of modelled wrappers and the releases that have them."""
    yield from _table(
        ("wrapper", "releases"),
        (
            (f"`{name}`", spans(v for v, release in RELEASES.items() if name in release.signatures))
            for name in OPERATIONS
        ),
    )


def defects() -> Iterator[str]:
    """Yield the table of defects."""
    yield from _table(
        ("name", "basis", "what goes wrong", "releases"),
        (
            (f"[`{name}`]({defect.link})", defect.basis, defect.summary, _shipped(name))
            for name, defect in DEFECTS.items()
        ),
    )


def _shipped(name: str) -> str:
    found = {
        arch: spans(v for v, release in RELEASES.items() if name in release.defects.get(arch, ()))
        for arch in ARCHES
    }
    if len(set(found.values())) == 1:
        return found[ARCHES[0]] or "none"
    return "; ".join(f"{arch} {text}" for arch, text in found.items() if text)


def _by_arch(heads: dict[str, tuple[int, ...]]) -> str:
    shown = [f"{arch} {', '.join(map(str, heads[arch]))}" for arch in ARCHES if arch in heads]
    return "; ".join(shown) or "none"


def _table(header: Iterable[str], rows: Rows) -> Iterator[str]:
    cells = [list(header)]
    yield f"| {' | '.join(cells[0])} |"
    yield "|" + "---|" * len(cells[0])
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "releases": releases,
    "wrappers": wrappers,
    "defects": defects,
}


def updated(page: str) -> str:
    """Return the page with every table between its marks as it is to be."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        body = "\n".join((start, *make(), end))
        page, count = re.subn(
            f"{re.escape(start)}.*?{re.escape(end)}", lambda _, b=body: b, page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"expected the marks '{start}' and '{end}' once, found {count}")
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
