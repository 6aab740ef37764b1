"""Tables of path, plan, layout memo and layout tables of one attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.record.evidence import LayoutEvidence
from harness.record.memo import MemoEvidence
from harness.record.path import PathEvidence
from harness.record.result import Attempt
from reports.table import Table, table
from reports.text import number_ranges, shorten

_LONGEST = 240


def path_tables(attempt: Attempt) -> tuple[Table, ...]:
    """What was not as it should be, the plan of every layer, dispatch, and the layout memo."""
    return (
        _deviation_table(attempt),
        _plan_table(attempt.paths),
        _dispatch_table(attempt.paths),
        _memo_table(attempt.memos),
        _request_table(attempt.memos),
        _layout_table(attempt.layouts),
    )


def _grouped(rows: Iterable[tuple[int, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Rows with the ranks that share them in front."""
    ranks: dict[tuple[str, ...], set[int]] = {}
    for rank, row in rows:
        ranks.setdefault(row, set()).add(rank)
    return [(number_ranges(who), *row) for row, who in ranks.items()]


def _deviation_table(attempt: Attempt) -> Table:
    rows: dict[tuple[str, str, str], set[int]] = {}
    for found in attempt.deviations:
        who = rows.setdefault((str(found.verdict), found.kind, found.text), set())
        if found.global_rank is not None:
            who.add(found.global_rank)
    shown = [
        (verdict, kind, number_ranges(who) if who else "-", shorten(text, _LONGEST))
        for (verdict, kind, text), who in rows.items()
    ]
    return table("Deviations", ("verdict", "kind", "global_rank", "what"), shown)


def _plan_table(paths: tuple[PathEvidence, ...]) -> Table:
    rows = _grouped(
        (
            path.cp_rank,
            (
                str(path.microbatch),
                path.plan,
                path.build_plan or "-",
                path.ran or "-",
                path.right_plan or "-",
                shorten(path.reason, _LONGEST),
                shorten(path.right_reason, _LONGEST) or "-",
            ),
        )
        for path in paths
    )
    header = (
        "cp_rank", "microbatch", "plan", "in the build's words", "what ran", "due by the layout",
        "reason", "reason of what is due",
    )  # fmt: skip
    return table("Scoring plan", header, rows)


def _dispatch_table(paths: tuple[PathEvidence, ...]) -> Table:
    rows = _grouped(
        (
            path.cp_rank,
            (
                str(path.microbatch),
                _pairs(path.dispatched),
                path.scorer,
                _pairs({name: whose or "a copy" for name, whose in path.shares.items()}),
                _pairs(path.compiles),
                _pairs(path.new_compiles),
                str(len(path.diagnostics)),
            ),
        )
        for path in paths
    )
    header = (
        "cp_rank", "microbatch", "dispatcher returned", "scorer", "memory of the scoring kernel's "
        "operands", "compile keys", "new to the process", "diagnostics",
    )  # fmt: skip
    return table("Dispatch", header, rows)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "-"


def _memo_table(memos: tuple[MemoEvidence, ...]) -> Table:
    rows = _grouped(
        (
            memo.cp_rank,
            (
                str(memo.microbatch),
                "yes" if memo.has_memo else "no",
                str(memo.layers),
                str(memo.builds),
                str(memo.reuses),
                str(len({request.table for request in memo.requests})),
                str(sum(request.sorts for request in memo.requests if request.builds)),
                str(sum(request.reads for request in memo.requests if request.builds)),
            ),
        )
        for memo in memos
        if memo.requests
    )
    header = (
        "cp_rank", "microbatch", "memo", "layers", "builds", "reuses", "objects", "sorts",
        "waits for values or sizes",
    )  # fmt: skip
    return table("Layout tables", header, rows)


def _request_table(memos: tuple[MemoEvidence, ...]) -> Table:
    """Sites and keys of builds that keep tables."""
    rows = _grouped(
        (
            memo.cp_rank,
            (
                str(memo.microbatch),
                request.site,
                request.key,
                request.geometry,
                request.flags,
                "built" if request.builds else "reused",
            ),
        )
        for memo in memos
        for request in memo.requests
        if request.key
    )
    header = ("cp_rank", "microbatch", "site", "key", "geometry", "cover flags", "tables")
    return table("Layout memo", header, rows, code=(3,))


def _layout_table(layouts: tuple[LayoutEvidence, ...]) -> Table:
    """One row for each table of the build, with the first one that differs."""
    rows = []
    for name in dict.fromkeys(item.table for item in layouts):
        found = [item for item in layouts if item.table == name]
        wrong = [item for item in found if not item.equal]
        first = "-"
        if wrong:
            place = f"cp_rank {wrong[0].cp_rank}, microbatch {wrong[0].microbatch}"
            first = f"{place}, layer {wrong[0].layer}: {wrong[0].detail}"
        ranks = number_ranges(item.cp_rank for item in found)
        rows.append((name, ranks, str(len(found)), str(len(found) - len(wrong)), first))
    header = ("table", "cp_rank", "compared", "equal", "first that differs")
    return table("Layout tables against the harness's own", header, rows)
