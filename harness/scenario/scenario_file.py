"""One scenario file on its way from text to resolved scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.record.codec import fields_from_jsonable, from_jsonable
from harness.scenario import rules
from harness.scenario.matrix import (
    Axes,
    Combination,
    MatrixError,
    expand,
    override_sections,
    suffix,
    written_at,
)
from harness.scenario.matrix_schema import LEAVES
from harness.scenario.model_files import ModelChoiceError, ModelLibrary
from harness.scenario.problems import NodePath, Problem, show_path
from harness.scenario.reading import named_in_matrix, read_keys
from harness.scenario.schema import REQUIRED
from harness.scenario.spec import ModelSpec, Scenario
from harness.scenario.yaml12 import Document

_PLACEHOLDERS: dict[str, Any] = {"id": "unnamed", "summary": "", "microbatches": []}
"""Stand in for required keys that did not parse; rules that need them are not run."""


@dataclass(kw_only=True, slots=True)
class ScenarioSource:
    """One scenario file: its sections as plain data, its scenarios, and what is wrong with it.

    Attributes:
        sections: Top-level keys as JSON-ready data, faulty parts left out.
        unusable: Paths that rules must not look at, see ``reading``.
        scenarios: One for each combination of the matrix; to be used only without errors.
        base: The sections as a scenario, before any combination; None until one is asked for.
    """

    path: Path
    document: Document
    problems: list[Problem] = field(default_factory=list)
    sections: dict[str, Any] = field(default_factory=dict)
    unusable: set[NodePath] = field(default_factory=set)
    scenarios: list[Scenario] = field(default_factory=list)
    base: Scenario | None = None

    @property
    def family(self) -> str | None:
        """The id as written, None when it did not parse."""
        return self.sections.get("id")

    def report(self, path: NodePath, message: str) -> None:
        """Note an error at a value."""
        self.problems.append(self.document.problem(self.document.at_value(path), message))


def read_source(
    path: Path, document: Document, found: tuple[Problem, ...], library: ModelLibrary
) -> ScenarioSource:
    """Read one parsed file as far as it goes; every error is in ``problems``.

    Args:
        path: The file.
        document: Its data, with positions.
        found: What is wrong with it as a file and as YAML.
        library: Models by name.
    """
    source = ScenarioSource(path=path, document=document, problems=list(found))
    if isinstance(document.data, dict):
        reading = read_keys(document)
        source.sections, source.unusable = reading.sections, reading.unusable
        source.problems += reading.problems
        for combination in _combinations(source):
            _resolve(source, combination, library)
        _check_names(source)
    elif not found:
        source.report((), f"expected a mapping with the keys {', '.join(REQUIRED)} and others")
    return source


def _combinations(source: ScenarioSource) -> tuple[Combination, ...]:
    matrix = source.sections.pop("matrix", None)
    if matrix is None:
        return ((),)
    written = source.document.data["matrix"]
    axes = Axes(
        axes={key: matrix[key] for key in written if key in LEAVES},
        include=[
            {key: entry[key] for key in as_written}
            for entry, as_written in zip(
                matrix.get("include", []), written.get("include", []), strict=True
            )
        ],
        exclude=matrix.get("exclude", []),
        leaves=LEAVES,
    )
    try:
        return expand(axes)
    except MatrixError as error:
        source.report(error.path, f"{show_path(error.path)}: {error}")
        source.unusable |= set(named_in_matrix(written))
        return ((),)


def _check_names(source: ScenarioSource) -> None:
    names = [scenario.id for scenario in source.scenarios]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        source.report(
            ("matrix",),
            f"matrix: two combinations are named '{twice}'; remove one, or change its values",
        )


def _resolve(source: ScenarioSource, combination: Combination, library: ModelLibrary) -> None:
    unusable = set(source.unusable)
    usable = tuple(o for o in combination if o.path[:1] not in unusable)
    try:
        model = None if ("model",) in unusable else _model(source, usable, library)
    except ModelChoiceError as error:
        base = ("model",) if isinstance(source.sections["model"], str) else ("model", "base")
        source.report(written_at(base, usable), f"{show_path(base)}: {error}")
        model = None
    if model is None:
        unusable.add(("model",))
        model = ModelSpec(name="unknown")
    others = (o for o in usable if o.path[0] != "model")
    sections = {**_PLACEHOLDERS, **override_sections(source.sections, others)}
    sections["id"] += suffix(combination)
    scenario = replace(_decoded(source, sections), model=model)
    source.problems += _broken_rules(source, scenario, combination, unusable)
    if not unusable:
        source.scenarios.append(scenario)


def _decoded(source: ScenarioSource, sections: dict[str, Any]) -> Scenario:
    """Return sections as a scenario, whose model is set by the caller.

    Combinations of a matrix differ in a few sections: the others are decoded once for the file.
    """
    # Every section here has been validated, so that decoding cannot fail.
    if source.base is None:
        bare = {**_PLACEHOLDERS, "model": {"name": "unknown"}}
        source.base = from_jsonable(Scenario, {**bare, **_without_model(source.sections)})
    written = source.sections
    changed = {key: v for key, v in _without_model(sections).items() if v is not written.get(key)}
    return replace(source.base, **fields_from_jsonable(Scenario, changed))


def _without_model(sections: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sections.items() if key != "model"}


def _model(source: ScenarioSource, overrides: Combination, library: ModelLibrary) -> ModelSpec:
    choice = source.sections["model"]
    changes = {}
    for override in overrides:
        if override.path == ("model",):
            choice = override.value
        elif override.path[0] == "model":
            changes[override.path[1]] = override.value
    return library.resolve(choice, changes)


def _broken_rules(
    source: ScenarioSource, scenario: Scenario, combination: Combination, unusable: set[NodePath]
) -> Iterator[Problem]:
    document = source.document
    for finding in rules.check(scenario, unusable=unusable):
        mark = document.at_value(written_at(finding.path, combination))
        problem = document.problem(mark, f"{show_path(finding.path)}: {finding.message}")
        yield replace(problem, severity=finding.severity)
