"""Write the generated tables of ``docs/builds.md``: ``python docs/build_tables.py RUN [RUN ...]``.

Each RUN is the folder of a run with one build of Megatron; runs of the same build are joined.
Nothing is taken from anywhere but the records of these runs. A table of which they hold nothing
stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "builds.md"

# Run as a script, Python looks beside it only.
sys.path.insert(0, str(ROOT))

from harness.record.memo import MemoEvidence  # noqa: E402
from harness.record.result import FactValue, ScenarioResult  # noqa: E402
from harness.record.verdict import Outcome  # noqa: E402
from reports.store import load_run  # noqa: E402

FACTS = (
    "has_scoring_plan",
    "reports_unfused_plan",
    "has_layout_memo",
    "has_host_layout",
    "passes_causal_offsets",
    "has_dynamic_cp",
)
_PREFIX = "evidence/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """A build's name in the tables, and its results by id."""

    name: str
    results: dict[str, ScenarioResult]


def builds_of(folders: Iterable[Path]) -> list[Build]:
    """Read runs; those of one build are joined, and a later result replaces an earlier one.

    Raises:
        ValueError: when a run's build cannot be told: it has no readable run.json.
    """
    found: dict[str, dict[str, ScenarioResult]] = {}
    for folder in folders:
        run = load_run(folder)
        if run.record is None:
            raise ValueError(f"{folder}: no readable run.json, so its build is unknown")
        environment = run.record.environment
        name = f"megatron-core {environment.megatron_core}"
        if environment.megatron_commit:
            name = f"{environment.megatron_commit[:10]} ({environment.megatron_core})"
            name += ", changed" if environment.megatron_dirty else ""
        found.setdefault(name, {}).update({result.id: result for result in run.results})
    return [Build(name=name, results=results) for name, results in found.items()]


def builds_table(builds: Sequence[Build]) -> Iterator[str]:
    """Yield what each build is, by its probed facts."""
    rows = []
    for fact in FACTS:
        rows.append((f"`{fact}`", *(_text(_fact(build, fact)) for build in builds)))
    yield from _table(("fact", *(build.name for build in builds)), rows)


def _fact(build: Build, fact: str) -> FactValue:
    for result in build.results.values():
        if fact in result.last.proof.facts:
            return result.last.proof.facts[fact]
    return None


def _text(value: object) -> str:
    return {True: "yes", False: "no", None: "-"}.get(value, str(value))  # type: ignore[call-overload]


def plans_table(builds: Sequence[Build]) -> Iterator[str]:
    """Yield the plan due by the layout, and the one that each build took."""
    names = _ids(builds, "plan-")
    rows = []
    for name in names:
        found = [build.results.get(name) for build in builds]
        due = {path.right_plan for result in found if result for path in result.last.paths}
        rows.append((_short(name), " ".join(sorted(due)), *map(_plan_cell, found)))
    yield from _table(("scenario", "due", *(build.name for build in builds)), rows)


def _plan_cell(result: ScenarioResult | None) -> str:
    if result is None:
        return "-"
    plans = sorted({path.plan for path in result.last.paths})
    kinds = sorted({deviation.kind for deviation in result.last.deviations} - {"plan"})
    text = " ".join(plans) or str(result.verdict)
    return f"{text}; {', '.join(kinds)}" if kinds else text


def reasons_table(builds: Sequence[Build]) -> Iterator[str]:
    """Yield plans in the words of builds that name them, with the reasons they gave."""
    rows = {
        (build.name, path.build_plan, path.plan, path.reason)
        for build in builds
        for name, result in build.results.items()
        if name.startswith(_PREFIX)
        for path in result.last.paths
        if path.build_plan is not None
    }
    yield from _table(
        ("build", "in its words", "canonical", "reason"),
        ((name, f"`{word}`", plan, reason) for name, word, plan, reason in sorted(rows)),
    )


def memo_table(builds: Sequence[Build]) -> Iterator[str]:
    """Yield builds and reuses of layout tables of each microbatch, over all layers and ranks."""
    rows = [
        (
            _short(name),
            str(microbatch),
            *(_memo_cell(b.results.get(name), microbatch) for b in builds),
        )
        for name in _ids(builds, "memo-")
        for microbatch in _microbatches(builds, name)
    ]
    yield from _table(("scenario", "microbatch", *(build.name for build in builds)), rows)


def _microbatches(builds: Sequence[Build], name: str) -> list[int]:
    results = (build.results.get(name) for build in builds)
    return sorted({m.microbatch for result in results if result for m in result.last.memos})


def _memo_cell(result: ScenarioResult | None, microbatch: int) -> str:
    memos = [m for m in result.last.memos if m.microbatch == microbatch] if result else []
    return "; ".join(sorted({_memo_text(memo) for memo in memos})) or "-"


def _memo_text(memo: MemoEvidence) -> str:
    sorts = sum(request.sorts for request in memo.requests if request.builds)
    return f"{memo.builds} built, {memo.reuses} reused in {memo.layers} layers, {sorts} sorts"


def layouts_table(builds: Sequence[Build]) -> Iterator[str]:
    """Yield how many layout tables were compared, and how many of them are equal."""
    rows = [
        (_short(name), *(_layout_cell(build.results.get(name)) for build in builds))
        for name in _ids(builds, "layout-")
    ]
    yield from _table(("scenario", *(build.name for build in builds)), rows)


def _layout_cell(result: ScenarioResult | None) -> str:
    if result is None:
        return "-"
    layouts = result.last.layouts
    if not layouts:
        return str(result.verdict)
    wrong = sorted({item.table for item in layouts if not item.equal})
    equal = sum(item.equal for item in layouts)
    text = f"{equal} of {len(layouts)}"
    return f"{text}; not {', '.join(wrong)}" if wrong else text


def _ids(builds: Sequence[Build], kind: str) -> list[str]:
    ids = (name for build in builds for name in build.results)
    return [name for name in dict.fromkeys(ids) if name.startswith(_PREFIX + kind)]


def outcomes_table(folder: str, builds: Sequence[Build]) -> Iterator[str]:
    """Yield what became of each scenario file of a folder, its matrix counted."""
    ids = (name for build in builds for name in build.results)
    files = dict.fromkeys(name.partition("[")[0] for name in ids if name.startswith(f"{folder}/"))
    rows = [
        (f"`{name.removeprefix(f'{folder}/')}`", *(_outcome_cell(build, name) for build in builds))
        for name in sorted(files)
    ]
    yield from _table(("file", *(build.name for build in builds)), rows)


def _outcome_cell(build: Build, file: str) -> str:
    found = [r for name, r in build.results.items() if name.partition("[")[0] == file]
    counts = Counter(_outcome_text(result) for result in found)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {text}" for text, count in sorted(counts.items())) or "-"


def _outcome_text(result: ScenarioResult) -> str:
    if result.outcome in (Outcome.EXPECTED, Outcome.NOT_RUN):
        return str(result.verdict)
    return f"{result.outcome} {result.verdict}"


_LOSSES = {
    "dsa_indexer_loss_coeff-0-no_dsa_indexer_use_sparse_loss": "loss off",
    "dsa_indexer_loss_coeff-0.1-no_dsa_indexer_use_sparse_loss": "dense loss",
    "dsa_indexer_loss_coeff-0.1-dsa_indexer_use_sparse_loss": "sparse loss",
}
"""Label of a matrix's combination to what it is about."""


def _short(name: str) -> str:
    for label, words in _LOSSES.items():
        name = name.replace(label, words)
    return f"`{name.removeprefix(_PREFIX)}`"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(header)
    yield f"| {' | '.join(cells)} |"
    yield "|" + "---|" * len(cells)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


TABLES: dict[str, Callable[[Sequence[Build]], Iterator[str]]] = {
    "builds": builds_table,
    "plans": plans_table,
    "reasons": reasons_table,
    "memo": memo_table,
    "layouts": layouts_table,
    "history": partial(outcomes_table, "history"),
    "dynamic_cp": partial(outcomes_table, "dynamic_cp"),
    "awkward": partial(outcomes_table, "layouts"),
}


_HEADER_LINES = 2


def updated(page: str, builds: Sequence[Build]) -> str:
    """Return the page with every table between its marks as the runs have it."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        marked = f"{re.escape(start)}.*?{re.escape(end)}"
        # A function, since the text of a table may hold what a pattern's replacement would read.
        lines = tuple(make(builds))
        body = "\n".join((start, *lines, end)) if len(lines) > _HEADER_LINES else None
        page, count = re.subn(marked, partial(_first, body), page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"expected the marks '{start}' and '{end}' once, found {count}")
    return page


def _first(text: str | None, match: re.Match[str]) -> str:
    return match[0] if text is None else text


def main(arguments: Sequence[str]) -> int:
    """Rewrite the page from the runs named on the command line."""
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    builds = builds_of(Path(argument) for argument in arguments)
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), builds), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
