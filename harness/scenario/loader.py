"""Scenario files, suites and folders to resolved scenarios, with every error of every file at once.

Sections are validated one by one; the rules across sections then run over those that parsed, once
for each combination of the matrix. Nothing here raises for a user's mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.scenario.collection import Collection
from harness.scenario.files import MODELS_DIR
from harness.scenario.model_files import ModelLibrary
from harness.scenario.problems import Problem, has_errors, sort_problems
from harness.scenario.scenario_file import ScenarioSource
from harness.scenario.spec import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedScenario:
    """A resolved scenario and where it was written.

    Attributes:
        line: Line of its id.
        family: Id without the part that a matrix adds.
    """

    scenario: Scenario
    file: str
    line: int
    family: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedSuite:
    """A suite without errors of its own and what it chooses.

    Attributes:
        line: Line of its name.
        scenario_ids: In the order of its files.
    """

    name: str
    summary: str
    source: tuple[str, ...]
    file: str
    line: int
    scenario_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    """The scenarios of all files without errors, and the problems of all files.

    Attributes:
        scenarios: Those that the paths stand for: all of a scenario file, of a suite those it
            chooses; each once.
        num_files: Scenario files that were looked at, suites left out.
    """

    scenarios: tuple[LoadedScenario, ...]
    problems: tuple[Problem, ...]
    num_files: int
    suites: tuple[LoadedSuite, ...] = ()

    @property
    def ok(self) -> bool:
        """True when no file has an error; warnings do not count."""
        return not has_errors(self.problems)


def load(paths: Iterable[str | Path], *, models_dir: Path = MODELS_DIR) -> LoadResult:
    """Read scenario files, suite files, and folders that are searched for ``*.yaml``."""
    library = ModelLibrary(folder=models_dir)
    found = Collection(models=library)
    found.add(paths)
    _report_repeated_ids(found.scenario_files)
    chosen = found.chosen()
    problems = [*found.problems, *library.problems]
    problems += (problem for source in found.sources.values() for problem in source.problems)
    return LoadResult(
        scenarios=tuple(
            loaded
            for source in found.scenario_files
            for loaded in _loaded(source)
            if loaded.scenario.id in chosen
        ),
        problems=sort_problems(problems, found.order),
        num_files=len(found.scenario_files),
        suites=tuple(_loaded_suites(found)),
    )


def _loaded_suites(found: Collection) -> Iterator[LoadedSuite]:
    for suite in found.suites:
        if suite.content is None or has_errors(suite.problems):
            continue
        yield LoadedSuite(
            name=suite.content.suite,
            summary=suite.content.summary,
            source=tuple(suite.content.source),
            file=suite.document.file,
            line=suite.document.at_key(("suite",)).line,
            scenario_ids=found.chosen_by(suite),
        )


def _loaded(source: ScenarioSource) -> Iterator[LoadedScenario]:
    if has_errors(source.problems) or source.family is None:
        return
    line = source.document.at_key(("id",)).line
    for scenario in source.scenarios:
        yield LoadedScenario(
            scenario=scenario, file=source.document.file, line=line, family=source.family
        )


def _report_repeated_ids(sources: Iterable[ScenarioSource]) -> None:
    """Report ids that two files share; the error stands in both, as both may be the wrong one."""
    first: dict[str, ScenarioSource] = {}
    for source in sources:
        if source.family is None:
            continue
        other = first.setdefault(source.family, source)
        if other is not source:
            for one, two in ((other, source), (source, other)):
                one.report(
                    ("id",),
                    f"id: '{source.family}' is also the id of {two.document.file}; "
                    "rename one of them",
                )
