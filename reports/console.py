"""The summary of a run on a console: plain lines in a log, colour only on a terminal.

Nothing here is imported beyond the standard library until a terminal is written to, so that the
leader of a run can print its progress with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from harness.record.environment import Environment
from harness.record.result import RunRecord, ScenarioResult
from reports.by_release import families, release_line, short_names
from reports.files import result_file
from reports.findings import rate_texts
from reports.injected import never_struck
from reports.overlap import RankOverlap
from reports.proof import HARDWARE, proof_lines
from reports.published import published_text
from reports.summary import Need, RunSummary, ScenarioView, totals_line, view
from reports.text import counted, last_line, number_ranges, ratio, seconds, shorten, visible

MAX_DETAILED = 20
"""With more scenarios than this, those as expected get one line each instead of a table."""

_RANKS_PER_LINE = 8
_INDENT = " " * 12
_LONGEST = 1000
_STYLES = {
    Need.FAULT: "bold red",
    Need.WRONG: "bold red",
    Need.FIXED: "bold yellow",
    Need.KNOWN: "yellow",
    Need.NOT_RUN: "cyan",
    Need.EXPECTED: "green",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the summary and how a terminal shows it."""

    text: str
    style: str = ""


def scenario_line(result: ScenarioResult) -> str:
    """Return one line on a finished scenario, for printing while the run goes on."""
    return _scenario_line(view(result))


def _scenario_line(item: ScenarioView) -> str:
    parts = [_headline(item), f"plan {item.plan}", f"kernels {item.kernels}"]
    rank = item.worst_rank
    if rank is not None and item.least_strict is not None:
        least = f"least of {counted(len(item.ranks), 'cp_rank')}"
        parts.append(f"overlap {ratio(rank.overlap)} strict {ratio(item.least_strict)} ({least})")
    missing = item.result.last.missing_capability
    if missing is not None:
        parts.append(f"missing {missing}")
    return visible("  ".join(parts))


def _headline(item: ScenarioView) -> str:
    result = item.result
    time = seconds(item.duration_s)
    return f"{result.outcome:<10}  {result.verdict:<16}  {time:>8}  {visible(result.id)}"


def summary_lines(summary: RunSummary) -> list[Line]:
    """Return the whole summary; the last line is the exit code with its meaning."""
    lines = list(_head(summary))
    detailed = len(summary.scenarios) <= MAX_DETAILED
    for item in summary.scenarios:
        if lines and lines[-1].text and (detailed or item.need is not Need.EXPECTED):
            lines.append(Line(text=""))
        lines += _scenario(item, detailed=detailed)
    for item in summary.failing:
        lines.append(Line(text=""))
        lines += block_lines(item)
    lines += _releases(summary)
    lines.append(Line(text=""))
    if summary.missing:
        shown = ", ".join(visible(name) for name in summary.missing[:5])
        more = " ..." if len(summary.missing) > 5 else ""
        lines.append(Line(text=f"without a result: {shown}{more}", style="bold yellow"))
    lines.append(Line(text=totals_line(summary), style="bold"))
    lines.append(Line(text=visible(summary.exit_line), style="bold"))
    return lines


def _releases(summary: RunSummary) -> Iterator[Line]:
    """One line per modelled release, where the run compares several."""
    if not summary.releases:
        return
    names = short_names(families(summary.releases))
    yield Line(text="")
    yield Line(text="by release:", style="bold")
    for row in summary.releases:
        yield Line(text="  " + shorten(release_line(row, names), _LONGEST))


def summary_text(summary: RunSummary) -> str:
    """Return the summary as plain text without any control character but line ends."""
    return "\n".join(line.text for line in summary_lines(summary)) + "\n"


def print_summary(summary: RunSummary, stream: TextIO | None = None) -> None:
    """Write the summary: with colour on a terminal, as plain text into a pipe, file or log."""
    out = sys.stdout if stream is None else stream
    if out.isatty():
        _print_styled(summary_lines(summary), out)
        return
    print_plain(summary_text(summary), out)


def print_plain(text: str, out: TextIO) -> None:
    """Write text as it is; what the stream's encoding lacks becomes escapes."""
    out.write(_encodable(text, out))
    out.flush()


def _encodable(text: str, out: TextIO) -> str:
    """Escape what the stream's encoding lacks, so that an ASCII terminal is no reason to fail."""
    encoding = out.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _print_styled(lines: list[Line], out: TextIO) -> None:
    # Only a terminal pays for rich; a log and the leader's progress lines never import it.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False)
    for line in lines:
        console.print(Text(_encodable(line.text, out), style=line.style), soft_wrap=True)


def _head(summary: RunSummary) -> Iterator[Line]:
    record = summary.record
    if record is not None:
        yield Line(text=visible(_run_line(record)), style="bold")
        yield Line(text=visible(f"build: {build_text(record.environment)}"))
    for text in proof_lines(summary.proof):
        yield Line(text=visible(text))
    notes = () if record is None else record.notes
    for note in notes:
        yield Line(text=shorten(f"note: {last_line(note)}", _LONGEST))
    for warning in summary.warnings:
        yield Line(text=visible(f"warning: {warning}"), style="bold yellow")


def _run_line(record: RunRecord) -> str:
    ranks = f"{counted(record.world_size, 'rank')} on {counted(record.num_nodes, 'node')}"
    return f"run {record.name}: {ranks}, isolation {record.isolation}, {record.started_at}"


def build_text(environment: Environment) -> str:
    """Name the versions that decide a verdict, and the GPUs."""
    megatron = f"megatron-core {environment.megatron_core or 'not found'}"
    if environment.megatron_commit:
        megatron += f" ({environment.megatron_commit[:12]}"
        megatron += ", with local changes)" if environment.megatron_dirty else ")"
    parts = [
        megatron,
        f"torch {environment.torch or 'not found'}",
        f"cudnn-frontend {environment.cudnn_frontend or 'not installed'}",
    ]
    if environment.transformer_engine:
        parts.append(f"transformer-engine {environment.transformer_engine}")
    names = [gpu.name for gpu in environment.gpus]
    gpus = [f"{len(list(group))} x {name}" for name, group in groupby(sorted(names))]
    return ", ".join(parts + (gpus or ["no GPU"]))


def _scenario(item: ScenarioView, *, detailed: bool) -> Iterator[Line]:
    style = _style(item)
    if item.need is Need.EXPECTED and not detailed:
        yield Line(text=_scenario_line(item), style=style)
        yield from _spared(item)
        return
    yield Line(text=_headline(item), style=style)
    yield Line(text=_INDENT + visible(f"plan {item.plan}   kernels {item.kernels}"))
    proof = item.result.last.proof
    for label, values in (("overlays", proof.overlays), ("injected", proof.injected)):
        if values:
            yield Line(text=_INDENT + visible(f"{label} {', '.join(values)}"))
    yield from _spared(item)
    for text in overlap_rows(item):
        yield Line(text=_INDENT + text)
    for text in rate_texts(item.result):
        yield Line(text=_INDENT + visible(f"rate: {text}"))
    for entry in item.published:
        yield Line(text=_INDENT + shorten(f"published: {published_text(entry)}", _LONGEST))
    if item.known:
        yield Line(text=_INDENT + visible(f"known defect: {item.known}"))
        if item.window:
            yield Line(text=_INDENT + visible(f"kernel window: {item.window}"))
    missing = item.result.last.missing_capability
    if missing is not None:
        yield Line(text=_INDENT + visible(f"not run: missing {missing}"))


def _spared(item: ScenarioView) -> Iterator[Line]:
    if spared := never_struck(item.result.last):
        yield Line(text=_INDENT + shorten(visible(f"never struck: {spared}"), _LONGEST))


def _style(item: ScenarioView) -> str:
    """A pass on hardware looks stronger than a pass of a model."""
    measured = item.need is Need.EXPECTED and item.kernels.startswith(HARDWARE)
    return ("bold " if measured else "") + _STYLES[item.need]


def overlap_rows(item: ScenarioView) -> Iterator[str]:
    """Return aligned rows of overlap per ``cp_rank``, least over microbatches, layers and seeds.

    A stage other than the shown one, and single seeds, get a row of their own where they differ.
    """
    if not item.ranks:
        return
    rows = [
        ("overlap", [ratio(rank.overlap) for rank in item.ranks]),
        ("strict", [ratio(rank.strict) for rank in item.ranks]),
    ]
    for other in item.other_ranks:
        values = [ratio(rank.overlap) for rank in other]
        if values != rows[0][1] and len(values) == len(item.ranks):
            rows.append((other[0].stage, values))
    rows += _seed_rows(item.ranks)
    header = [str(rank.cp_rank) for rank in item.ranks]
    label_width = max(len(label) for label, _ in [("cp_rank", []), *rows])
    columns = _columns(header, [values for _, values in rows])
    for start in range(0, len(columns), _RANKS_PER_LINE):
        part = columns[start : start + _RANKS_PER_LINE]
        widths = [max(len(cell) for cell in column) for column in part]
        labels = ["cp_rank", *(label for label, _ in rows)]
        for line, label in enumerate(labels):
            cells = [f"{column[line]:>{width}}" for column, width in zip(part, widths, strict=True)]
            note = f"   ({item.spread})" if item.spread and start == 0 and line == 0 else ""
            yield f"{label:<{label_width}}  " + "  ".join(cells) + note


def _seed_rows(ranks: tuple[RankOverlap, ...]) -> list[tuple[str, list[str]]]:
    if not any(seed.overlap < 1.0 for rank in ranks for seed in rank.seeds):
        return []
    if not any(rank.seeds_differ for rank in ranks):
        return []
    rows = []
    for number in sorted({seed.seed for rank in ranks for seed in rank.seeds}):
        values = []
        for rank in ranks:
            found = [seed.overlap for seed in rank.seeds if seed.seed == number]
            values.append(ratio(found[0]) if found else "-")
        rows.append((f"overlap seed {number}", values))
    return rows


def _columns(header: list[str], rows: list[list[str]]) -> list[list[str]]:
    """Turn rows into columns; with many ranks, neighbours that show the same become one column."""
    columns = [list(column) for column in zip(header, *rows, strict=True)]
    if len(columns) <= _RANKS_PER_LINE:
        return columns
    # Rank minus place is constant along consecutive ranks only, so gaps are never drawn over.
    keyed = [((int(column[0]) - place, column[1:]), column) for place, column in enumerate(columns)]
    groups = [[column for _, column in group] for _, group in groupby(keyed, key=lambda k: k[0])]
    return [
        [number_ranges(int(member[0]) for member in members), *members[0][1:]] for members in groups
    ]


def block_lines(item: ScenarioView) -> Iterator[Line]:
    """A failure block; its last line is the command that reruns the scenario."""
    result = item.result
    title = f"--- {result.outcome}: {result.verdict}: {visible(result.id)} ---"
    yield Line(text=title, style=_STYLES[item.need])
    rows = [("summary", result.summary), *((f.label, f.text) for f in item.findings)]
    rows.append(("plan", f"{item.plan}, kernels {item.kernels}"))
    rows.append(("result", result_file(result)))
    rows += [("stacks", text) for text in _stacks(result)]
    if result.file:
        rows.append(("scenario", result.file))
    for label, text in rows:
        yield Line(text=f"{label:<12}{shorten(text, _LONGEST)}")
    yield Line(text=f"{'rerun':<12}{visible(result.rerun) or 'no command was recorded'}")


def _stacks(result: ScenarioResult) -> Iterator[str]:
    """Name the stack dump to read first, and how many others there are."""
    fault = result.last.fault
    first = None if fault is None else fault.global_rank
    dumps = sorted(
        (rank.global_rank != first, rank.global_rank, rank.stacks)
        for rank in result.last.ranks
        if rank.stacks
    )
    if dumps:
        more = f" (and {len(dumps) - 1} of other ranks)" if len(dumps) > 1 else ""
        yield f"{dumps[0][2]}{more}"
