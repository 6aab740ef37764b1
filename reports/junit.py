"""``junit.xml``: a run as CI servers read test results.

Every scenario is a test case. A check that failed is a ``failure``; a crash, hang or start that
failed, and a result that is missing, an ``error``; what did not run, and a known defect, is
``skipped`` with its reason. The dialect is the common part of what GitLab, Jenkins and the readers
for GitHub take: https://github.com/testmoapp/junitxml describes it.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.record.verdict import FAULTS, ExitCode, Outcome, Verdict
from reports.console import block_lines
from reports.files import files_to_read
from reports.findings import excerpts
from reports.summary import Need, RunSummary, ScenarioView, missing_text, totals_line
from reports.text import ratio
from reports.xml_text import xml_line, xml_lines

CLASS = "dsa-harness"
"""Class of the test case that stands for the run itself."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_MAX_LINES = 60
"""Most lines of a text in full; logs are linked, never embedded."""


def render_junit(summary: RunSummary) -> str:
    """Return a run as JUnit XML."""
    record = summary.record
    name = "run" if record is None else record.name
    suites: dict[str, list[ET.Element]] = {}
    for item in summary.scenarios:
        suites.setdefault(_group(item.result.id), []).append(_case(item, summary.folder))
    for missing in summary.missing:
        suites.setdefault(_group(missing), []).append(
            _missing_case(missing, missing_text(summary, missing))
        )
    about_run = _run_case(summary)
    if about_run is not None:
        suites.setdefault(CLASS, []).append(about_run)
    root = ET.Element("testsuites", {"name": _named(name)})
    root.attrib.update(_counts([case for cases in suites.values() for case in cases]))
    # Strict readers know this count of a suite only.
    del root.attrib["skipped"]
    for group, cases in suites.items():
        root.append(_suite(group, cases, summary))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _group(scenario_id: str) -> str:
    """Return the suite of a scenario: the folders of its id.

    >>> _group("causal/zigzag[cp4/x]"), _group("plain")
    ('causal', 'scenarios')
    """
    return scenario_id.partition("[")[0].rpartition("/")[0] or "scenarios"


def _named(text: str) -> str:
    """Return text as a name, which no reader takes empty."""
    return xml_line(text) or "-"


def _counts(cases: Sequence[ET.Element]) -> dict[str, str]:
    kinds = [{child.tag for child in case} for case in cases]
    return {
        "tests": str(len(cases)),
        "failures": str(sum("failure" in tags for tags in kinds)),
        "errors": str(sum("error" in tags for tags in kinds)),
        "skipped": str(sum("skipped" in tags for tags in kinds)),
        "time": f"{sum(float(case.get('time', '0')) for case in cases):.3f}",
    }


def _suite(group: str, cases: Sequence[ET.Element], summary: RunSummary) -> ET.Element:
    suite = ET.Element("testsuite", {"name": _named(group), **_counts(cases)})
    record = summary.record
    if record is not None:
        suite.set("hostname", xml_line(record.environment.host))
        time = _TIME.match(record.started_at)
        if time is not None:
            suite.set("timestamp", time[0])
        _properties(suite, _run_properties(summary))
    suite.extend(cases)
    return suite


def _run_properties(summary: RunSummary) -> Iterator[tuple[str, str]]:
    record = summary.record
    assert record is not None
    environment = record.environment
    for name in ("megatron_core", "megatron_commit", "cudnn_frontend", "torch", "cuda", "driver"):
        value = getattr(environment, name)
        if value is not None:
            yield name, value
    yield "num_gpus", str(len(environment.gpus))
    yield "world_size", str(record.world_size)
    yield "kernels", "; ".join(summary.proof.kernels) or "none"
    for name in ("shims", "overlays", "injected"):
        values: tuple[str, ...] = getattr(summary.proof, name)
        if values:
            yield name, ", ".join(values)
    yield "proves", " ".join(summary.proof.meaning)
    yield "rerun", record.rerun


def _case(item: ScenarioView, folder: Path | None) -> ET.Element:
    result = item.result
    case = ET.Element(
        "testcase",
        {
            "classname": _named(_group(result.id)).replace("/", "."),
            "name": _named(result.id),
            "time": f"{item.duration_s:.3f}",
        },
    )
    if result.file:
        # GitLab links the file, others show it; the line of the document is no part of its name.
        case.set("file", _named(result.file.rpartition(":")[0] or result.file))
    _properties(case, _case_properties(item))
    tag = _tag(item)
    if tag is not None:
        reason = ET.SubElement(case, tag, {"message": _message(item), "type": _type(item)})
        if item.need.acts:
            reason.text = _text(item)
    files = files_to_read(result, folder) if item.need.acts or item.need is Need.KNOWN else ()
    if files:
        lines = [f"[[ATTACHMENT|{xml_line(_place(folder, file))}]]" for file in files]
        ET.SubElement(case, "system-out").text = "\n".join(lines)
    return case


def _tag(item: ScenarioView) -> str | None:
    """Return the element that says how a case ended, None for a pass."""
    result = item.result
    if item.need in (Need.KNOWN, Need.NOT_RUN):
        return "skipped"
    if not item.need.acts:
        return None
    faults = FAULTS | {Verdict.HARNESS_ERROR}
    return "error" if result.outcome is Outcome.UNEXPECTED and result.verdict in faults else (
        "failure"
    )  # fmt: skip


def _type(item: ScenarioView) -> str:
    if item.need is Need.KNOWN:
        return "known_defect"
    return item.need.value if item.need in (Need.FIXED, Need.NOT_RUN) else item.result.verdict.value


def _message(item: ScenarioView) -> str:
    result = item.result
    if item.need is Need.KNOWN:
        return xml_line(f"known defect: {result.verdict}: {item.known}")
    if item.need is Need.NOT_RUN:
        return xml_line(f"not run: missing {result.last.missing_capability}")
    said = {finding.label: finding.text for finding in item.findings}
    first = next(
        (said[label] for label in ("first fault", "error", "why", "worst rank") if label in said),
        f"expected {result.expected}",
    )
    return xml_line(f"{result.outcome}: {result.verdict}: {first}")


def _text(item: ScenarioView) -> str:
    """Return the failure block of the console, what is worth reading in full, and the command."""
    parts = [line.text for line in block_lines(item)]
    for excerpt in excerpts(item.result.last):
        parts += ["", f"{excerpt.label}:", xml_lines(excerpt.text, _MAX_LINES)]
    return xml_lines("\n".join(parts))


def _case_properties(item: ScenarioView) -> Iterator[tuple[str, str]]:
    result = item.result
    proof = result.last.proof
    yield "verdict", str(result.verdict)
    yield "outcome", str(result.outcome)
    yield "expected", result.expected
    yield "plan", item.plan
    yield "kernels", item.kernels
    yield from _scenario_properties(result.scenario)
    for name, values in (("overlays", proof.overlays), ("injected", proof.injected)):
        if values:
            yield name, ", ".join(values)
    if item.worst_rank is not None and item.least_strict is not None:
        yield "overlap", ratio(item.worst_rank.overlap)
        yield "strict_overlap", ratio(item.least_strict)
    yield "attempts", str(len(result.attempts))
    yield "content_hash", result.content_hash
    if result.rerun:
        yield "rerun", result.rerun


_SHOWN_KEYS = (
    ("level", ("level",)),
    ("dtype", ("values", "dtype")),
    ("cp_size", ("parallel", "context_parallel_size")),
    ("tp_size", ("parallel", "tensor_model_parallel_size")),
    ("dsa_kernel_backend", ("kernels", "dsa_kernel_backend")),
    ("cuda_graph_impl", ("graph", "cuda_graph_impl")),
)
"""Property name to the keys of the resolved scenario that lead to its value."""


def _scenario_properties(scenario: dict[str, object]) -> Iterator[tuple[str, str]]:
    for name, keys in _SHOWN_KEYS:
        value: object = scenario
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            yield name, str(value)


def _properties(parent: ET.Element, pairs: Iterator[tuple[str, str]]) -> None:
    found = ET.SubElement(parent, "properties")
    for name, value in pairs:
        ET.SubElement(found, "property", {"name": xml_line(name), "value": xml_line(value)})


def _place(folder: Path | None, file: str) -> str:
    """Return where a file lies: from the current folder where it is below it, else in full."""
    if folder is None:
        return file
    full = os.path.abspath(folder / file)
    near = os.path.relpath(full)
    return full if near.startswith("..") else near


def _missing_case(scenario_id: str, text: str) -> ET.Element:
    case = ET.Element(
        "testcase",
        {
            "classname": _named(_group(scenario_id)).replace("/", "."),
            "name": _named(scenario_id),
            "time": "0.000",
        },
    )
    ET.SubElement(case, "error", {"message": xml_line(text), "type": "no_result"})
    return case


def _run_case(summary: RunSummary) -> ET.Element | None:
    """Return a case for the run itself where its scenarios do not tell how it ended."""
    code = summary.exit_code
    told = {ExitCode.OK, ExitCode.CHECK_FAILED, ExitCode.FAULT, ExitCode.NOTHING_RAN}
    broken = any(item.result.verdict is Verdict.HARNESS_ERROR for item in summary.scenarios)
    if summary.scenarios and (code in told or (code == ExitCode.HARNESS_ERROR and broken)):
        return None
    case = ET.Element("testcase", {"classname": CLASS, "name": "run", "time": "0.000"})
    message = xml_line(f"{summary.exit_line}; {totals_line(summary)}")
    if code == ExitCode.NOTHING_RAN or (code == ExitCode.OK and not summary.scenarios):
        ET.SubElement(case, "skipped", {"message": message, "type": "nothing_ran"})
        return case
    reason = ET.SubElement(case, "error", {"message": message, "type": "run"})
    notes = () if summary.record is None else summary.record.notes
    reason.text = xml_lines("\n".join((*summary.warnings, *notes)), _MAX_LINES)
    return case
