"""Runs under compute-sanitizer: one attempt per start of the workers, findings added afterwards.

The tool wraps a worker's whole process and writes its file when the process has ended; the file
does not say which scenario an error belongs to. So the workers are started anew for each attempt,
in one run folder, and what the tool found is taken into the attempt that has just been made.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import click

from harness.record.ending import results_code
from harness.record.files import RUN_FILE, read_record
from harness.record.result import RunRecord, ScenarioResult
from harness.record.verdict import ExitCode
from harness.runtime.commands import RUN_SCRIPT, option_words, run_words
from harness.runtime.options import Options
from harness.runtime.plan import Planned
from harness.runtime.recovery import recover
from harness.runtime.resume import attempts_due
from harness.runtime.run_folder import RunFolder
from harness.runtime.run_lock import RunLock
from harness.runtime.sanitizer import (
    Settings,
    Tool,
    find_sanitizer,
    parse_sanitizer,
    rank_words,
    read_reports,
    with_findings,
)
from harness.runtime.verdicts import Verdicts
from launch.run_command import launch

_MISSING = (
    "--sanitizer {tool}: expected compute-sanitizer on the path, below CUDA_HOME or in this "
    "environment, found none; install the CUDA toolkit, or the package nvidia-cuda-sanitizer-api "
    "(pip install -e '.[debug]')"
)
_BY_SIGNAL = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)

Made = frozenset[tuple[str, int]]


def run_sanitized(options: Options, num_ranks: int) -> ExitCode:
    """Run what was asked for under the tool and return the run's exit code."""
    assert options.sanitizer is not None
    tool, ranks = parse_sanitizer(options.sanitizer)
    if find_sanitizer() is None:
        click.echo(_MISSING.format(tool=tool), err=True)
        return ExitCode.USAGE
    beyond = [rank for rank in ranks if rank >= num_ranks]
    if beyond:
        click.echo(
            f"--sanitizer {options.sanitizer}: expected ranks below {num_ranks}, found "
            f"{beyond[0]}; add --ranks {beyond[-1] + 1}, or name another rank",
            err=True,
        )
        return ExitCode.USAGE
    with tempfile.TemporaryDirectory(prefix="dsa-harness-sanitizer-") as scratch:
        run = _Sanitized(
            options=replace(options, isolation="none", jobs=1),
            tool=tool,
            ranks=ranks,
            num_ranks=num_ranks,
            scratch=Path(scratch),
        )
        return run.execute()


@dataclass(kw_only=True)
class _Sanitized:
    """One run whose workers are started once for each attempt."""

    options: Options
    tool: Tool
    ranks: tuple[int, ...]
    num_ranks: int
    scratch: Path
    folder: Path | None = None
    starts: int = 0
    due: bool = True

    def execute(self) -> ExitCode:
        before: Made = frozenset()
        cut: set[str] = set()
        while True:
            settings = self._settings()
            code = self._start(settings)
            if self.folder is None or code in _BY_SIGNAL:
                return code
            results = self._take_in(settings, before)
            made = frozenset((r.id, a.number) for r in results.values() for a in r.attempts)
            new = {
                r.id
                for r in results.values()
                for a in r.attempts
                if a.cut_short is not None and (r.id, a.number) not in before
            }
            # A worker that dies again in the same place leaves nothing to wait for.
            if not self.due or made == before or new & cut:
                return self._finish()
            cut |= new
            before = made

    def _settings(self) -> Settings:
        self.starts += 1
        folder = self.scratch / str(self.starts)
        return Settings(
            tool=self.tool,
            folder=str(folder),
            ranks=self.ranks,
            core_dump=self.options.core_dumps,
        )

    def _start(self, settings: Settings) -> ExitCode:
        told = self.scratch / "folder"
        words = ["--resume", str(self.folder)]
        if self.folder is None:
            words = run_words(replace(self.options, sanitizer=None))
        words += ["--at-most", "1", "--folder-file", str(told)]
        command = rank_words(settings, [sys.executable, "-u", str(RUN_SCRIPT), *words])
        code = launch(command[1:], self.num_ranks)
        if told.exists():
            self.folder = Path(told.read_text())
        return code

    def _take_in(self, settings: Settings, before: Made) -> dict[str, ScenarioResult]:
        """Add what the tool found to the attempts just made, and return all results."""
        assert self.folder is not None
        lock = RunLock(self.folder)
        try:
            found = recover(self.folder)
            verdicts = Verdicts(found.plan.options.judge, found.plan.options.inject)
            results = dict(found.results)
            for item in found.plan.scenarios:
                result = results.get(item.scenario.id)
                for attempt in result.attempts if result is not None else ():
                    if (item.scenario.id, attempt.number) not in before:
                        result = self._with_findings(
                            item, results[item.scenario.id], attempt.number, settings, verdicts
                        )
                        results[item.scenario.id] = result
            self.due = any(
                attempts_due(i, results.get(i.scenario.id)) for i in found.plan.scenarios
            )
            return results
        finally:
            lock.release()

    def _with_findings(
        self,
        item: Planned,
        result: ScenarioResult,
        number: int,
        settings: Settings,
        verdicts: Verdicts,
    ) -> ScenarioResult:
        assert self.folder is not None
        findings, notes = read_reports(settings, item.num_ranks)
        attempts = tuple(
            with_findings(attempt, findings, notes) if attempt.number == number else attempt
            for attempt in result.attempts
        )
        folder = RunFolder(path=self.folder)
        place = folder.place(item.scenario.id, number)
        for rank in range(item.num_ranks):
            file = settings.file(rank)
            if file.exists() and place.is_dir():
                (place / file.name).write_bytes(file.read_bytes())
        after = verdicts.result(item, attempts, self._command(item))
        folder.write_result(after)
        return after

    def _command(self, item: Planned) -> str:
        """Return the command that makes one such attempt again."""
        options = replace(self.options, isolation=None, repeat=None)
        words = ["dsa-harness", "run", "--ranks", str(self.num_ranks)]
        words += [item.file.rpartition(":")[0], "-k", f"={item.scenario.id}"]
        return shlex.join(
            [*words, "--sanitizer", self.options.sanitizer or "", *option_words(options)]
        )

    def _finish(self) -> ExitCode:
        """Write run.json and the documents anew, and print the summary."""
        from reports.console import print_summary
        from reports.render import read_summary, write_documents
        from reports.store import load_run

        assert self.folder is not None
        code = results_code(load_run(self.folder).results)
        record = read_record(self.folder / RUN_FILE, RunRecord)
        where = f"ranks {', '.join(map(str, self.ranks))}" if self.ranks else "all ranks"
        note = f"ran under compute-sanitizer {self.tool} on {where}, started anew for each attempt"
        resumed = tuple(
            n for n in record.notes if not n.startswith(("resumed at", "rank processes"))
        )
        RunFolder(path=self.folder).write_run(
            replace(
                record,
                exit_code=int(code),
                exit_meaning=code.meaning,
                state="finished",
                notes=(*resumed, note),
            )
        )
        summary = read_summary(self.folder)
        write_documents(summary, self.folder)
        print_summary(summary)
        return code
