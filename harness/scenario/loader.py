"""Scenario files and folders to resolved scenarios, with every error of every file at once.

Sections are validated one by one; the rules across sections then run over those that parsed, once
for each combination of the matrix. Nothing here raises for a user's mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.scenario.files import MODELS_DIR, find
from harness.scenario.model_files import ModelLibrary
from harness.scenario.problems import Problem, has_errors, sort_problems
from harness.scenario.scenario_file import ScenarioSource, read_source
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
class LoadResult:
    """The scenarios of all files without errors, and the problems of all files.

    Attributes:
        num_files: Scenario files that were looked at.
    """

    scenarios: tuple[LoadedScenario, ...]
    problems: tuple[Problem, ...]
    num_files: int

    @property
    def ok(self) -> bool:
        """True when no file has an error; warnings do not count."""
        return not has_errors(self.problems)


def load(paths: Iterable[str | Path], *, models_dir: Path = MODELS_DIR) -> LoadResult:
    """Read scenario files, and folders that are searched for ``*.yaml``."""
    library = ModelLibrary(folder=models_dir)
    problems: list[Problem] = []
    sources: list[ScenarioSource] = []
    files: list[str] = []
    for found in find(paths):
        if isinstance(found, Problem):
            problems.append(found)
            files.append(found.file)
        else:
            sources.append(read_source(found, library))
            files.append(sources[-1].document.file)
    _report_repeated_ids(sources)
    problems += (problem for source in sources for problem in source.problems)
    return LoadResult(
        scenarios=tuple(loaded for source in sources for loaded in _loaded(source)),
        problems=sort_problems([*problems, *library.problems], files),
        num_files=len(sources),
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
