"""One suite file: its own keys, and where the paths it names lead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.scenario.files import PROJECT_ROOT, shown
from harness.scenario.messages import explain
from harness.scenario.problems import NodePath, Problem
from harness.scenario.suite_schema import SuiteFile
from harness.scenario.yaml12 import Document


@dataclass(kw_only=True, slots=True)
class SuiteSource:
    """One suite file: its keys and what is wrong with them.

    Attributes:
        content: The keys, None when one of them did not parse.
        entries: Paths as written; empty when their list did not parse.
    """

    path: Path
    document: Document
    problems: list[Problem] = field(default_factory=list)
    content: SuiteFile | None = None
    entries: tuple[str, ...] = ()

    def report(self, path: NodePath, message: str) -> None:
        """Note an error at a value."""
        self.problems.append(self.document.problem(self.document.at_value(path), message))

    def located(self) -> Iterator[tuple[int, Path]]:
        """Yield the number of each entry that leads somewhere, and where; report the others."""
        for number, entry in enumerate(self.entries):
            candidates = dict.fromkeys((self.path.parent / entry, PROJECT_ROOT / entry))
            found = next(filter(_exists, candidates), None)
            if found is not None:
                yield number, _near(found)
                continue
            looked = " and ".join(dict.fromkeys(shown(_near(path))[:200] for path in candidates))
            self.report(
                ("scenarios", number),
                f"scenarios[{number}]: no such file or folder, looked for {looked}; give a path "
                "relative to this file or to the project's root folder",
            )


def is_suite(data: Any) -> bool:
    """Tell a suite from a scenario: by its key, or where that is missing by the other one."""
    return isinstance(data, dict) and (
        "suite" in data or ("scenarios" in data and "microbatches" not in data)
    )


def read_suite(path: Path, document: Document, found: tuple[Problem, ...]) -> SuiteSource:
    """Check the keys of a parsed suite file; every error is in ``problems``."""
    source = SuiteSource(path=path, document=document, problems=list(found))
    try:
        source.content = SuiteFile.model_validate(document.data)
        source.entries = tuple(source.content.scenarios)
    except ValidationError as error:
        source.problems += explain(error, document, root=SuiteFile)
        faulty = {detail["loc"][0] for detail in error.errors(include_url=False)}
        if "scenarios" not in faulty:
            # So that errors in the files it names are shown together with its own.
            source.entries = tuple(document.data["scenarios"])
    return source


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _near(path: Path) -> Path:
    """Return a path without detours, relative to the current folder where it is below it."""
    plain = Path(os.path.realpath(path))  # pathlib's own raises for names that are too long
    here = Path.cwd()
    return plain.relative_to(here) if plain.is_relative_to(here) else plain
