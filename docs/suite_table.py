"""Write the tables of pull request 6206's suite: ``python docs/suite_table.py RUN RUN RUN``.

Each RUN is the folder of a run of ``configs/suites/pr6206.yaml``: with one build, bare or under
overlays. The tables in ``docs/builds.md`` get a column for each, in this order, from its records
alone. ``RUN,RUN`` are one column: of scenarios that ran in both the later one counts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Run as a script, Python looks beside it only.
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from build_tables import PAGE, Build, plans_table  # noqa: E402

from harness.record.result import RunRecord, ScenarioResult  # noqa: E402
from harness.record.verdict import Outcome, Verdict  # noqa: E402
from harness.scenario.loader import load  # noqa: E402
from reports.store import load_run  # noqa: E402

SUITE = ROOT / "configs" / "suites" / "pr6206.yaml"
ROWS = {
    "plans": ("evidence/plan-",),
    "layout tables": ("evidence/layout-",),
    "layout memo": ("evidence/memo-", "pr6206/first-layer-waits"),
    "hooks of other parties": ("hooks/",),
    "aliases and views of boundaries": ("layouts/aliases", "layouts/views"),
    "broken invariants": ("layouts/refused-", "perturb/"),
    "static CP 2, one and many sequences": ("pr6206/one-and-many",),
    "cuDNN parity at CP 2, three seeds": ("pr6206/cudnn-parity",),
    "Dynamic CP at level attention": ("dynamic_cp/",),
    "Dynamic CP at level model": ("dynamic_cp/model_",),
    "warnings about CUDA graphs": ("evidence/graphs", "pr6206/graph-dynamic"),
    "local attention graph at CP 2": ("pr6206/graph-local",),
    "waits of the packed builder": ("pr6206/host-waits",),
    "copies to the device": ("pr6206/host-to-device",),
}
"""Row of the suite to what the ids of its scenarios begin with; the longest beginning counts."""


def columns_of(arguments: Iterable[str]) -> list[Build]:
    """Read runs, one column for each argument.

    Raises:
        ValueError: when a run's build cannot be told: it has no readable run.json.
    """
    columns = []
    for argument in arguments:
        names, results = [], {}
        for folder in argument.split(","):
            run = load_run(Path(folder))
            if run.record is None:
                raise ValueError(f"{folder}: no readable run.json, so its build is unknown")
            names.append(_name(run.record))
            results.update({result.id: result for result in run.results})
        if len(set(names)) > 1:
            raise ValueError(f"{argument}: expected runs of one build, found {' and '.join(names)}")
        columns.append(Build(name=names[0], results=results))
    return columns


def _name(record: RunRecord) -> str:
    environment = record.environment
    name = f"megatron-core {environment.megatron_core}"
    if environment.megatron_commit:
        name = f"{environment.megatron_commit[:10]} ({environment.megatron_core})"
    overlays = record.command.count("--overlay")
    return f"{name}, {overlays} overlays" if overlays else name


def outcomes(columns: Sequence[Build]) -> Iterator[str]:
    """Yield what became of the scenarios of each row of the suite."""
    rows = []
    columns = [Build(name=c.name, results=_of_suite(c.results)) for c in columns]
    for row in ROWS:
        cells = [_cell(_of_row(column, row)) for column in columns]
        if any(cells):
            rows.append((row, *(cell or "-" for cell in cells)))
    yield from _table(("row of the suite", *(column.name for column in columns)), rows)


def _of_suite(results: dict[str, ScenarioResult]) -> dict[str, ScenarioResult]:
    """Leave out scenarios that the suite had when it ran, and has no longer."""
    ids = {item.scenario.id for item in load([SUITE]).scenarios}
    families = {name.partition("[")[0] for name in ids}
    return {
        name: result
        for name, result in results.items()
        if name in ids or name.partition("[")[0] not in families
    }


def _of_row(column: Build, row: str) -> list[ScenarioResult]:
    return [result for name, result in column.results.items() if _row_of(name) == row]


def _row_of(name: str) -> str | None:
    begins = [(begin, row) for row, words in ROWS.items() for begin in words]
    fitting = [(len(begin), row) for begin, row in begins if name.startswith(begin)]
    return max(fitting)[1] if fitting else None


def _cell(results: Sequence[ScenarioResult]) -> str:
    counts = Counter(map(_outcome, results))
    return ", ".join(f"{count} {text}" for text, count in sorted(counts.items(), key=_order))


def _order(item: tuple[str, int]) -> tuple[bool, str]:
    return (item[0] != "pass", item[0])


def _outcome(result: ScenarioResult) -> str:
    verdict = str(result.verdict)
    if result.verdict is Verdict.NOT_RUN:
        return f"not run ({result.last.missing_capability})"
    if result.outcome is Outcome.EXPECTED:
        return verdict
    return f"{result.outcome} {verdict}"


def waits(columns: Sequence[Build]) -> Iterator[str]:
    """Yield builds of tables, and waits of the host, of one microbatch on one rank."""
    rows = []
    name = "pr6206/first-layer-waits"
    rows.append(("builds of tables, 3 layers", *(_builds(c.results.get(name)) for c in columns)))
    for layer in range(1, 4):
        cells = (_waits(c.results.get(name), layer) for c in columns)
        rows.append((f"waits in layer {layer}", *cells))
    for cp_size in (2, 4, 8, 16):
        scenario = f"pr6206/host-waits[cp{cp_size}]"
        cells = (_waits(c.results.get(scenario), 1) for c in columns)
        rows.append((f"waits of one build at CP {cp_size}", *cells))
    yield from _table(("of one microbatch", *(column.name for column in columns)), rows)


def _builds(result: ScenarioResult | None) -> str:
    memos = result.last.memos if result else ()
    return " or ".join(map(str, sorted({memo.builds for memo in memos}))) or "-"


def _waits(result: ScenarioResult | None, layer: int) -> str:
    records = result.last.transfers if result else ()
    counts = {record.host_reads for record in records if record.layer == layer}
    return " or ".join(map(str, sorted(counts))) or "-"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(header)
    yield f"| {' | '.join(cells)} |"
    yield "|" + "---|" * len(cells)
    for row in rows:
        yield f"| {' | '.join(row)} |"


TABLES = {"suite": outcomes, "suite_plans": plans_table, "waits": waits}


def updated(page: str, columns: Sequence[Build]) -> str:
    """Return the page with the suite's tables as the runs have them.

    Raises:
        ValueError: when the page lacks the marks of a table.
    """
    for name, make in TABLES.items():
        start, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        before, found_start, rest = page.partition(start)
        _old, found_end, behind = rest.partition(end)
        if not (found_start and found_end):
            raise ValueError(f"expected the marks '{start}' and '{end}' in {PAGE.name}, found none")
        page = "\n".join((f"{before}{start}", *make(columns), f"{end}{behind}"))
    return page


def main(arguments: Sequence[str]) -> int:
    """Rewrite the page from the runs named on the command line."""
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    columns = columns_of(arguments)
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), columns), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
