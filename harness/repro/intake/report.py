"""An intake as Markdown to read and as plain data to process; secrets masked in both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.repro.intake.facts import Fact
from harness.repro.intake.intake import Intake
from harness.repro.intake.kinds import SHOWN, Candidate
from harness.repro.intake.lines import Gap
from harness.repro.intake.masking import masked

SCHEMA_VERSION = 1
_QUOTED = 160
_FAULTS = (
    "exception",
    "cuda_error",
    "signal",
    "exit",
    "out_of_memory",
    "collective_timeout",
    "time_limit",
    "node_failure",
    "nan",
)
_SOFTWARE = (
    "gpu",
    "megatron_core",
    "megatron_commit",
    "megatron_branch",
    "cudnn_frontend",
    "cute_dsl",
    "torch",
    "cuda",
    "driver",
    "cudnn",
    "nccl",
    "transformer_engine",
    "flash_mla",
)


def markdown(intake: Intake, problems: tuple[str, ...] = ()) -> str:
    """Return the report.

    Args:
        intake: What was read.
        problems: What ``dsa-harness verify`` says of the drafted scenario.
    """
    return "\n".join(_lines(intake, problems)) + "\n"


def as_data(intake: Intake, problems: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the report as JSON-ready data."""
    return _clean(_data(intake, problems))


def _clean(value: Any) -> Any:
    """Return data with secrets masked in every text, names of files among them."""
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return masked(value) if isinstance(value, str) else value


def _data(intake: Intake, problems: tuple[str, ...]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "files": intake.num_lines,
        "not_read": {
            file: {"bytes": gap.num_bytes, "first_line": gap.first, "last_line": gap.last}
            for file, gap in intake.gaps.items()
        },
        "forms": intake.facts.forms(),
        "fields": [
            {
                "path": one.path,
                "value": one.value,
                "rule": one.rule,
                "sources": [_source(fact) for fact in one.facts],
            }
            for one in intake.draft.fields
        ],
        "faults": [
            {"name": fact.name, "value": str(fact.value), **_source(fact)}
            for fact in _first_of_each(intake, _FAULTS)
        ],
        "software": {fact.name: fact.value for fact in _first_of_each(intake, _SOFTWARE)},
        "notes": list(intake.draft.notes),
        "problems": list(problems),
        "candidates": [
            {
                "number": one.kind.number,
                "title": one.kind.title,
                "scenarios": one.kind.scenarios,
                "tells": one.kind.tells,
                "signs": [
                    {
                        "shown": sign.weight == SHOWN,
                        "reason": sign.reason,
                        "sources": [_source(fact) for fact in sign.facts],
                    }
                    for sign in one.signs
                ],
            }
            for one in intake.candidates
        ],
        "questions": [
            {"topic": one.topic, "text": one.text, "fields": list(one.fields)}
            for one in intake.questions
        ],
    }


def _source(fact: Fact) -> dict[str, Any]:
    return {
        "file": fact.line.file,
        "line": fact.line.number,
        "form": fact.form,
        "text": masked(fact.line.text)[:_QUOTED],
    }


def _lines(intake: Intake, problems: tuple[str, ...]) -> Iterator[str]:
    yield "# Intake"
    yield ""
    forms = intake.facts.forms()
    for file, count in intake.num_lines.items():
        found = ", ".join(forms.get(file, {})) or "nothing that is known here"
        lines = f"{count} line{'' if count == 1 else 's'}"
        yield f"- {masked(file)}: {lines}, {found}{_unread(intake.gaps.get(file))}"
    yield from _section("How it failed", _said(intake, _FAULTS))
    yield from _section("On what", _said(intake, _SOFTWARE))
    yield from _section("Drafted, and where it stands", _fields(intake))
    yield from _section("Left out", (f"- {masked(note)}" for note in intake.draft.notes))
    yield from _section("The draft does not verify", (f"- {masked(text)}" for text in problems))
    yield from _section("What it may be", _candidates(intake, shown=True))
    yield from _section("What the configuration also allows", _candidates(intake, shown=False))
    yield from _section("To be asked, in this order", _questions(intake))


def _unread(gap: Gap | None) -> str:
    if gap is None:
        return ""
    return f"; {gap.num_bytes} bytes in the middle, lines {gap.first} to {gap.last}, are not read"


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield from ("", f"## {title}", "", *found)


def _first_of_each(intake: Intake, names: tuple[str, ...]) -> Iterator[Fact]:
    seen: set[tuple[str, object]] = set()
    for name in names:
        for fact in intake.facts.of(name):
            if (name, fact.value) not in seen:
                seen.add((name, fact.value))
                yield fact


def _said(intake: Intake, names: tuple[str, ...]) -> Iterator[str]:
    for fact in list(_first_of_each(intake, names))[:24]:
        quoted = masked(fact.line.text)[:_QUOTED].replace("`", "'")
        yield f"- {fact.name}: {masked(str(fact.value))} ({masked(fact.line.place)}): `{quoted}`"


def _fields(intake: Intake) -> Iterator[str]:
    for one in intake.draft.fields:
        value = list(one.value) if isinstance(one.value, tuple) else one.value
        shown = str(value) if len(str(value)) <= 80 else f"{str(value)[:77]}..."
        rule = f"; {one.rule}" if one.rule else ""
        yield f"- {one.path}: {masked(shown)} ({_places(one.facts)}{rule})"


def _places(facts: tuple[Fact, ...]) -> str:
    return ", ".join(dict.fromkeys(masked(fact.line.place) for fact in facts))


def _candidates(intake: Intake, *, shown: bool) -> Iterator[str]:
    for one in intake.candidates:
        if (one.weight[0] == SHOWN) is shown:
            yield from _candidate(one)


def _candidate(one: Candidate) -> Iterator[str]:
    yield f"- **{one.kind.title}** (kind {one.kind.number})"
    for sign in one.signs:
        yield f"  - because {masked(sign.reason)} ({_places(sign.facts)})"
    yield f"  - `dsa-harness run {one.kind.scenarios}`: {one.kind.tells}"


def _questions(intake: Intake) -> Iterator[str]:
    for number, one in enumerate(intake.questions, start=1):
        fields = f" (until then a default: {', '.join(one.fields)})" if one.fields else ""
        yield masked(f"{number}. {one.topic}: {one.text}{fields}")
