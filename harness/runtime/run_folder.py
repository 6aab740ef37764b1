"""The folder of one run: its making and its places."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.record.files import RESULTS_FOLDER, RUN_FILE, result_path, safe_name, write_record
from harness.record.result import RunRecord, ScenarioResult


class RunFolderError(ValueError):
    """The run folder cannot be made; the message says what to change."""


def check_writable(out: Path) -> None:
    """Refuse an output folder in which nothing can be made, without making anything.

    Raises:
        RunFolderError: naming the folder that is in the way.
    """
    for folder in (out, *out.parents):
        if folder.exists():
            if not folder.is_dir():
                raise RunFolderError(
                    f"--out {out}: {folder} is a file, expected a folder; choose another --out"
                )
            if not os.access(folder, os.W_OK | os.X_OK):
                raise RunFolderError(
                    f"--out {out}: {folder} cannot be written; change its mode or choose another "
                    "--out"
                )
            return


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """Places inside ``runs/<UTC time>-<name>/``."""

    path: Path

    @classmethod
    def create(cls, out: Path, name: str, now: datetime | None = None) -> RunFolder:
        """Make a new run folder with its parts.

        Raises:
            RunFolderError: if it cannot be made.
        """
        stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        base = f"{stamp}-{safe_name(name)}"
        for number in range(1, 1000):
            path = out.resolve() / (base if number == 1 else f"{base}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunFolderError(
                    f"--out {out}: cannot make {path}: {error.strerror}; choose another --out"
                ) from error
            (path / RESULTS_FOLDER).mkdir()
            (path / "ranks").mkdir()
            return cls(path=path)
        raise RunFolderError(f"--out {out}: a thousand runs are called {base}; give another --name")

    def attempt_folder(self, scenario_id: str, attempt: int) -> Path:
        """Make and return the folder of an attempt's journals, output and stacks."""
        folder = self.place(scenario_id, attempt)
        folder.mkdir(parents=True)
        return folder

    def place(self, scenario_id: str, attempt: int) -> Path:
        """Return the folder of an attempt."""
        folder = self.path / "ranks" / safe_name(scenario_id) / str(attempt)
        assert folder.is_relative_to(self.path / "ranks"), f"{folder} leaves the run folder"
        return folder

    def write_result(self, result: ScenarioResult) -> None:
        """Write or replace a scenario's result."""
        write_record(result_path(self.path, result.id), result)

    def write_run(self, record: RunRecord) -> None:
        """Write or replace ``run.json``."""
        write_record(self.path / RUN_FILE, record)
