"""The files that some paths stand for, each read once, and the scenarios they contribute.

A suite adds no scenarios of its own. What it chooses is worked out from the inside out, after all
files have been read, so that any number of suites may share files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.scenario.files import find, read_text, shown
from harness.scenario.model_files import ModelLibrary
from harness.scenario.problems import Problem, has_errors
from harness.scenario.scenario_file import ScenarioSource, read_source
from harness.scenario.select import select
from harness.scenario.spec import Scenario
from harness.scenario.suite_file import SuiteSource, is_suite, read_suite
from harness.scenario.yaml12 import Document, parse

MAX_DEPTH = 8
"""Deepest nesting of suites that name suites."""

Source = ScenarioSource | SuiteSource


@dataclass(kw_only=True, slots=True)
class Collection:
    """Files and what they contribute.

    Attributes:
        models: Models by name.
        sources: Files that take part, by real path, in the order in which they were come upon.
        problems: Of paths that lead to no file.
        order: Files and such paths, for the order of problems.
    """

    models: ModelLibrary
    sources: dict[Path, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    _read: dict[Path, Source] = field(default_factory=dict)
    _members: dict[Path, list[Source]] = field(default_factory=dict)
    _top: list[Source] = field(default_factory=list)

    def add(self, paths: Iterable[str | Path]) -> None:
        """Read files and folders, and what their suites name."""
        for found in find(paths):
            if isinstance(found, Problem):
                self.problems.append(found)
                self.order.append(found.file)
            else:
                self._top.append(self._take(found, ()))

    @property
    def suites(self) -> tuple[SuiteSource, ...]:
        """Suites that take part."""
        return tuple(s for s in self.sources.values() if isinstance(s, SuiteSource))

    @property
    def scenario_files(self) -> tuple[ScenarioSource, ...]:
        """Scenario files that take part."""
        return tuple(s for s in self.sources.values() if isinstance(s, ScenarioSource))

    def _open(self, path: Path) -> Source:
        real = path.resolve()
        if real not in self._read:
            document, found = _parsed(path)
            if is_suite(document.data):
                self._read[real] = read_suite(path, document, found)
            else:
                self._read[real] = read_source(path, document, found, self.models)
        return self._read[real]

    def _take(self, path: Path, inside: tuple[Path, ...]) -> Source:
        """Let a file take part, and if it is a suite, what it names as well."""
        source, real = self._open(path), path.resolve()
        if self.sources.setdefault(real, source) is source:
            self.order.append(source.document.file)
        if isinstance(source, SuiteSource) and real not in self._members:
            members = self._members[real] = []
            for number, entry in source.located():
                members += self._entry(source, number, entry, (*inside, real))
        return source

    def _entry(
        self, suite: SuiteSource, number: int, entry: Path, inside: tuple[Path, ...]
    ) -> Iterator[Source]:
        """Yield the files that one entry of a suite stands for."""
        is_folder = entry.is_dir()
        for found in find([entry]):
            where = ("scenarios", number)
            if isinstance(found, Problem):
                suite.report(where, f"scenarios[{number}]: {found.message}")
            elif not isinstance(self._open(found), SuiteSource):
                yield self._take(found, inside)
            elif is_folder:
                # A folder of a suite stands for its scenarios; a suite kept there may be the
                # very one that names the folder.
                continue
            elif found.resolve() in inside:
                chain = [*inside[inside.index(found.resolve()) :], found.resolve()]
                names = " -> ".join(path.name for path in chain)
                message = f"leads back to itself ({names}); remove one of these entries"
                suite.report(where, f"scenarios[{number}]: {message}")
            elif len(inside) >= MAX_DEPTH:
                message = f"suites nested more than {MAX_DEPTH} levels deep; name their files here"
                suite.report(where, f"scenarios[{number}]: {message}")
            else:
                yield self._take(found, inside)

    def chosen(self) -> set[str]:
        """Return the ids of all scenarios that the paths stand for; files with errors have none.

        A suite whose choice is empty although all its files are fine is reported.
        """
        choices: dict[Path, dict[str, Scenario]] = {}
        ids = {name for source in self._top for name in self._choose(source, choices)}
        for suite in self.suites:
            self._report_empty(suite, choices)
        return ids

    def chosen_by(self, suite: SuiteSource) -> tuple[str, ...]:
        """Return the ids that a suite chooses, in order."""
        return tuple(self._choose(suite, {}))

    def _choose(
        self, source: Source, choices: dict[Path, dict[str, Scenario]]
    ) -> dict[str, Scenario]:
        if isinstance(source, ScenarioSource):
            found = () if has_errors(source.problems) else source.scenarios
            return {scenario.id: scenario for scenario in found}
        real = source.path.resolve()
        if real not in choices:
            choices[real] = self._choice(source, self._choose_all(self._members[real], choices))
        return choices[real]

    def _choose_all(
        self, members: Iterable[Source], choices: dict[Path, dict[str, Scenario]]
    ) -> Iterator[Scenario]:
        for member in members:
            yield from self._choose(member, choices).values()

    @staticmethod
    def _choice(suite: SuiteSource, scenarios: Iterable[Scenario]) -> dict[str, Scenario]:
        content = suite.content
        if content is None or has_errors(suite.problems):
            return {}
        kept = select(scenarios, expression=content.select, tags=content.tags)
        return {scenario.id: scenario for scenario in kept}

    def _report_empty(self, suite: SuiteSource, choices: dict[Path, dict[str, Scenario]]) -> None:
        members = self._members[suite.path.resolve()]
        content = suite.content
        if content is None or any(has_errors(s.problems) for s in (suite, *members)):
            return
        total = len({scenario.id for scenario in self._choose_all(members, choices)})
        if not members:
            suite.report(("scenarios",), "scenarios: names no scenario file; add some")
        elif total and not self._choose(suite, choices):
            key = "select" if content.select is not None else "tags"
            message = f"{key}: chooses none of {total} scenarios; change it, see dsa-harness list"
            suite.report((key,), message)


def _parsed(path: Path) -> tuple[Document, tuple[Problem, ...]]:
    text = read_text(path)
    if isinstance(text, Problem):
        return Document(file=shown(path)), (text,)
    return parse(text, shown(path))
