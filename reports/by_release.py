"""What each modelled release and architecture is affected by, family of scenarios by family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.record.result import ScenarioResult
from harness.record.verdict import Outcome, Verdict
from harness.scenario.names import CUDNN_FRONTEND_RELEASES
from reports.proof import HARDWARE, MODELLED

Ending = tuple[Verdict, Outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRow:
    """The results of one modelled release on one architecture.

    Attributes:
        cells: Family to the number of its scenarios per verdict and outcome.
    """

    release: str
    arch: str
    cells: dict[str, Counter[Ending]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Release and architecture."""
        return f"{self.release} {self.arch}"


def family(scenario_id: str) -> str:
    """Return an id without the part that a matrix adds.

    >>> family("releases/zigzag[cudnn1.32.0-sm100]")
    'releases/zigzag'
    """
    return scenario_id.partition("[")[0]


def _column(result: ScenarioResult) -> str:
    """A result's family, with its overlays: a corrected run says nothing of the bare release."""
    overlays = result.scenario.get("overlays")
    if not isinstance(overlays, list) or not overlays:
        return family(result.id)
    return f"{family(result.id)} with {' and '.join(map(str, overlays))}"


def release_of(result: ScenarioResult) -> tuple[str, str] | None:
    """Return the modelled release and architecture that a scenario was about, None without one.

    What ran decides; where nothing was proved to have run, what the scenario asks for.
    """
    origins = [origin.split() for origin in result.last.proof.kernels.values()]
    modelled = [words for words in origins if words[:1] == [MODELLED] and len(words) == 3]
    if [HARDWARE] in origins or (origins and not modelled):
        return None
    if modelled:
        return modelled[0][1], modelled[0][2]
    return _asked(result)


def _asked(result: ScenarioResult) -> tuple[str, str] | None:
    kernels = result.scenario.get("kernels")
    if not isinstance(kernels, dict) or kernels.get("dsa_kernel_backend") != "cudnn":
        return None
    modelled = kernels.get("modelled")
    if kernels.get("source") == "hardware" or not isinstance(modelled, dict):
        return None
    return str(modelled.get("cudnn_frontend")), str(modelled.get("arch"))


def by_release(results: Iterable[ScenarioResult]) -> tuple[ReleaseRow, ...]:
    """Return a row per modelled release and architecture, oldest release first.

    Empty where all results are about one release and architecture: there is nothing to compare.
    """
    rows: dict[tuple[str, str], ReleaseRow] = {}
    for result in results:
        found = release_of(result)
        if found is None:
            continue
        row = rows.setdefault(found, ReleaseRow(release=found[0], arch=found[1]))
        cell = row.cells.setdefault(_column(result), Counter())
        cell[result.verdict, result.outcome] += 1
    if len(rows) < 2:
        return ()
    return tuple(rows[key] for key in sorted(rows, key=_age))


def _age(key: tuple[str, str]) -> tuple[int, str, str]:
    release, arch = key
    known = release in CUDNN_FRONTEND_RELEASES
    place = CUDNN_FRONTEND_RELEASES.index(release) if known else len(CUDNN_FRONTEND_RELEASES)
    return place, release, arch


def families(rows: Iterable[ReleaseRow]) -> tuple[str, ...]:
    """Return the families of all rows, sorted."""
    return tuple(sorted({name for row in rows for name in row.cells}))


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return families without the folders that they all share.

    >>> short_names(["releases/a", "releases/b"])
    {'releases/a': 'a', 'releases/b': 'b'}
    """
    split = [name.split("/") for name in names]
    shared = 0
    while len({tuple(parts[: shared + 1]) for parts in split}) == 1 and all(
        len(parts) > shared + 1 for parts in split
    ):
        shared += 1
    return {name: "/".join(parts[shared:]) for name, parts in zip(names, split, strict=True)}


def cell_text(cell: Counter[Ending] | None) -> str:
    """Return a table cell: verdict and outcome, worst first, with numbers where there are several.

    >>> cell_text(Counter({(Verdict.PASS, Outcome.EXPECTED): 2}))
    'pass (expected) x 2'
    """
    if not cell:
        return "-"
    return ", ".join(
        f"{verdict} ({outcome})" + (f" x {cell[verdict, outcome]}" if cell.total() > 1 else "")
        for verdict, outcome in sorted(cell, key=_urgency)
    )


def _urgency(ending: Ending) -> tuple[int, str]:
    return ending[0].rank, ending[1]


def release_line(row: ReleaseRow, names: dict[str, str]) -> str:
    """Return one line: which families show what on this release, those that are right last.

    Args:
        row: The release.
        names: Family to the name to show, from ``short_names``.
    """
    found: dict[Ending, list[str]] = {}
    for name in sorted(row.cells):
        cell = row.cells[name]
        for ending, number in cell.items():
            part = f" ({number} of {cell.total()})" if number < cell.total() else ""
            found.setdefault(ending, []).append(names[name] + part)
    parts = [
        f"{_ending_text(ending)} in {', '.join(found[ending])}"
        for ending in sorted(found, key=_urgency)
    ]
    return f"{row.name}: {'; '.join(parts)}"


def _ending_text(ending: Ending) -> str:
    verdict, outcome = ending
    if outcome in (Outcome.UNEXPECTED, Outcome.FIXED):
        return f"{verdict} ({outcome})"
    if verdict is Verdict.PASS:
        return "right"
    return f"{verdict} as expected" if outcome is Outcome.EXPECTED else str(verdict)
