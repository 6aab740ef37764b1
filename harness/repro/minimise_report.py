"""Files of a minimisation: every accepted case, what runs showed, and the closing table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from harness.record.codec import DecodeError, from_jsonable, to_jsonable
from harness.record.files import write_record, write_text
from harness.record.result import ScenarioResult
from harness.record.verdict import Verdict
from harness.repro.minimise import NO_FAULT, MinimiseReport, Row, Step
from harness.repro.search_histories import expecting
from harness.repro.signature import Signature, signature_of
from harness.scenario.dump import plain_id
from harness.scenario.spec import Scenario
from harness.scenario.writing import scenario_to_yaml

SMALLEST_FILE = "smallest.yaml"
STEPS_FOLDER = "steps"
RUNS_FILE = "evaluations.jsonl"
REPORT_FILE = "minimise.json"
PAGE_FILE = "report.md"
RESULT_FILE = "result.json"

_ENDINGS = {
    "smallest": "nothing smaller that was tried shows it",
    "budget": "the budget is used up; --resume goes on",
    "evaluations": "as many evaluations as asked for; --resume goes on",
    "stopped": "a signal; --resume goes on",
}


class SignatureFileError(ValueError):
    """A file holds no signature; the message names it."""


def read_signature(path: Path) -> Signature:
    """Read a signature, or take it from a result of a run (``results/*.json``).

    Raises:
        SignatureFileError: if the file is neither.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "attempts" in data:
            return signature_of(from_jsonable(ScenarioResult, data))
        if isinstance(data, dict):
            _check_verdict(path, data.get("verdict"))
        return from_jsonable(Signature, data)
    except SignatureFileError:
        raise
    except (OSError, ValueError, RecursionError, DecodeError) as error:
        raise SignatureFileError(
            f"--signature {path}: expected a signature or a result of a run as JSON, found none: "
            f"{error}"
        ) from error


def _check_verdict(path: Path, found: object) -> None:
    faults = [str(verdict) for verdict in Verdict if verdict not in NO_FAULT]
    if found not in faults:
        shown = "none" if found is None else f"{found!r:.40}"
        raise SignatureFileError(
            f"--signature {path}: expected a verdict to keep (one of {', '.join(faults)}), found "
            f"{shown}"
        )


@dataclass(kw_only=True)
class Files:
    """Writes accepted cases as they come.

    Attributes:
        folder: Folder of this minimisation.
        given: The case to make small.
        rerun: Command that runs a scenario file alone, without the file.
    """

    folder: Path
    given: Scenario
    rerun: str
    _count: int = 0

    def step(self, step: Step, signature: Signature | None) -> None:
        """Save one accepted case, and as the smallest so far.

        Raises:
            OSError: if a file cannot be written.
        """
        self._count += 1
        text = self._text(step.scenario, signature, step.text)
        write_text(self.folder / STEPS_FOLDER / f"{self._count:03}.yaml", text)
        write_text(self.folder / SMALLEST_FILE, text)

    def _text(self, scenario: Scenario, signature: Signature | None, change: str) -> str:
        comments = [
            f"Made smaller from {self.given.id}; last change: {change}.",
            *([f"Shows {signature}."] if signature is not None else []),
            f"{self.rerun} {SMALLEST_FILE}",
        ]
        return scenario_to_yaml(named(scenario, self.given, signature), comments=comments)

    def end(self, report: MinimiseReport) -> MinimiseReport:
        """Write the closing table and the result of the smallest case."""
        path = self.folder / SMALLEST_FILE
        smallest = named(report.scenario, self.given, report.signature)
        result = report.result
        if result is not None:
            result = replace(
                result,
                id=smallest.id,
                content_hash=smallest.content_hash,
                summary=smallest.summary,
                tags=smallest.tags,
                scenario=to_jsonable(smallest),
                file=f"{path}:1",
                rerun=f"{self.rerun} {path}",
            )
            write_record(self.folder / RESULT_FILE, result)
        report = replace(report, scenario=smallest, result=result)
        write_record(self.folder / REPORT_FILE, replace(report, result=None))
        page = ["# Minimised", "", "```text", *minimise_lines(report, self.folder), "```", ""]
        write_text(self.folder / PAGE_FILE, "\n".join(page))
        return report


def named(scenario: Scenario, given: Scenario, signature: Signature | None) -> Scenario:
    """Return a case under an id of its own."""
    if signature is not None:
        scenario = expecting(scenario, signature.verdict)
    return replace(
        scenario,
        id=plain_id(f"{given.id}-minimal"),
        tags=(*(tag for tag in given.tags if tag != "minimised"), "minimised"),
        published=(),
        repeat=1,
    )


def minimise_lines(report: MinimiseReport, folder: Path) -> list[str]:
    """Return what to say at the end, for a console."""
    remembered = f", {report.replayed} remembered" if report.replayed else ""
    return [
        f"kept: {report.signature}",
        "",
        *_table(report.rows),
        "",
        f"{report.evaluations} evaluations{remembered} in {report.duration_s:.1f} s; ended: "
        f"{_ENDINGS[report.ending]}",
        *(
            []
            if report.alone
            else ["not seen in processes that ran nothing before: it may need what ran before it"]
        ),
        f"{folder / SMALLEST_FILE}",
        *([f"rerun: {report.result.rerun}"] if report.result is not None else []),
    ]


def _table(rows: tuple[Row, ...]) -> list[str]:
    head = ("", "given", "smallest", "smaller was tried: it showed")
    cells = [head, *((row.name, row.before, row.after, row.refused) for row in rows)]
    shown = [tuple(_short(cell) for cell in line) for line in cells]
    widths = [max(len(line[column]) for line in shown) for column in range(3)]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[3]]).rstrip()
        for line in shown
    ]


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
