"""The leader of a run: make the run folder, execute, judge, write.

Runs in the worker with rank 0 and needs no torch there, except under isolation ``none``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.production.locate import activate
from harness.record.result import Attempt, RunRecord, ScenarioResult
from harness.record.verdict import ExitCode, exit_code
from harness.runtime import commands
from harness.runtime.attempts import FreshRunner, Places, Runner, utc_now
from harness.runtime.control import ControlServer
from harness.runtime.fingerprint import collect
from harness.runtime.generation import SharedRunner
from harness.runtime.inline import InlineRunner
from harness.runtime.options import Options
from harness.runtime.plan import Planned
from harness.runtime.preflight import Preflight
from harness.runtime.progress import Progress, plain_line
from harness.runtime.run_folder import RunFolder
from harness.runtime.spawner import SpawnerError, SpawnFacts
from harness.runtime.starters import NodeStarter, Starter, WorkerStarter
from harness.runtime.stop import StopRequest
from harness.runtime.supervisor import Supervisor
from harness.runtime.verdicts import Verdicts
from harness.runtime.world import World


class _StoppedError(Exception):
    """The run was asked to stop while it prepared."""


_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _storage_problem(problem: OSError) -> str | None:
    """One line for a file system that takes no more, None for any other error."""
    if problem.errno not in _STORAGE_ERRORS:
        return None
    return (
        f"{problem.filename or 'the run folder'}: {problem.strerror}; make room on the file system "
        "that holds --out, or choose another --out"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a run ended."""

    folder: RunFolder
    record: RunRecord
    results: tuple[ScenarioResult, ...]
    exit_code: ExitCode
    duration_s: float


class Leader:
    """Executes a checked run."""

    def __init__(
        self,
        world: World,
        options: Options,
        preflight: Preflight,
        server: ControlServer,
        stop: StopRequest,
        *,
        describe: Callable[[ScenarioResult], str] = plain_line,
    ) -> None:
        """Make the run folder.

        Args:
            world: Ranks of the run.
            options: What was asked for.
            preflight: What the checks made of it.
            server: The control socket, listening.
            stop: Tells whether the run shall end early.
            describe: Words for a finished scenario on the console.

        Raises:
            RunFolderError: if that cannot be done.
        """
        self._world = world
        self._options = options
        self._preflight = preflight
        self._server = server
        self._stop = stop
        name = options.name or Path(options.scenarios[0]).resolve().stem
        self.folder = RunFolder.create(Path(options.out), name)
        self._started_s = time.monotonic()
        self._record = self._first_record(name)
        self._results: dict[str, ScenarioResult] = {}
        self._attempts: dict[str, tuple[Attempt, ...]] = {}
        self._progress = Progress(len(preflight.planned), describe)
        self._verdicts = Verdicts(options.judge, options.inject)
        self._scratch = server.path.with_suffix(".d")
        self._lost = False

    def _first_record(self, name: str) -> RunRecord:
        started_at = utc_now()
        return RunRecord(
            name=name,
            started_at=started_at,
            command=tuple(sys.orig_argv),
            rerun=commands.rerun_run(self._world, self._options),
            world_size=self._world.world_size,
            num_nodes=self._world.num_nodes,
            isolation=self._preflight.isolation,
            environment=collect(self._preflight.build),
            scenario_ids=tuple(item.scenario.id for item in self._preflight.planned),
        )

    def run(self) -> RunEnd:
        """Execute all scenarios; every record is written when this returns."""
        self.folder.write_run(self._record)
        self._progress.say(f"run folder {self.folder.path}")
        error: str | None = None
        try:
            self._execute()
        except _StoppedError:
            pass
        except SpawnerError as problem:
            error = str(problem)
        except OSError as problem:
            error = _storage_problem(problem) or traceback.format_exc()
        except Exception:  # noqa: BLE001 (kept in the record and shown)
            error = traceback.format_exc()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if error is not None:
            print(error, file=sys.stderr, flush=True)  # noqa: T201
        return self.finish(self._exit_code(error), error)

    def _exit_code(self, error: str | None) -> ExitCode:
        # Where a worker failed, the launcher asks the others to stop: an echo, not a reason.
        if self._stop() and not self._lost:
            return self._stop.exit_code
        if error is not None:
            return ExitCode.HARNESS_ERROR
        return exit_code((result.verdict, result.outcome) for result in self._results.values())

    def finish(self, code: ExitCode, error: str | None = None) -> RunEnd:
        """Write the final ``run.json``, again where a later step failed."""
        notes = self._record.notes + ((error,) if error is not None else ())
        self._record = replace(
            self._record,
            finished_at=utc_now(),
            exit_code=int(code),
            exit_meaning=code.meaning,
            notes=notes,
        )
        try:
            self.folder.write_run(self._record)
        except OSError as problem:
            if _storage_problem(problem) is None:
                raise
            # Said already; what stands on disk still says that the run was cut short.
        return RunEnd(
            folder=self.folder,
            record=self._record,
            results=tuple(self._results.values()),
            exit_code=code,
            duration_s=time.monotonic() - self._started_s,
        )

    def _execute(self) -> None:
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        activate(self._preflight.build)
        with contextlib.ExitStack() as stack:
            runner, alone = self._runners()
            stack.callback(runner.close)
            for index, item in enumerate(self._preflight.planned):
                if self._stop():
                    return
                lost = self._one(item, runner, alone)
                if lost is not None:
                    self._lost = True
                    self._not_run(self._preflight.planned[index + 1 :], lost)
                    return

    def _runners(self) -> tuple[Runner, Runner | None]:
        """Return the runner of this run, and the one that repeats a scenario alone."""
        places = Places(folder=self.folder, scratch=self._scratch, options=self._options)
        isolation = self._preflight.isolation
        if isolation == "none":
            workers = self._world.local_world_size
            return InlineRunner(places, self._server, workers, self._stop), None
        starter = self._starter()
        self._note_start(starter.prepare(self._check_stop))
        supervisor = Supervisor(
            run_folder=self.folder.path,
            stop_requested=self._stop,
            heartbeat=self._progress.beat,
        )
        fresh = FreshRunner(places, starter, supervisor)
        if isolation == "scenario":
            return fresh, None
        return SharedRunner(places, starter, supervisor, self._server), fresh

    def _starter(self) -> Starter:
        paths = (str(self._preflight.build.root),) if self._options.megatron else ()
        if all(item.device == "cpu" for item in self._preflight.planned):
            # Modelled kernels beside a GPU: nothing may find it, the preload included.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if self._preflight.supervision == "node":
            return NodeStarter(paths=paths)
        num_workers = max(item.num_ranks for item in self._preflight.planned)
        return WorkerStarter(self._server, num_workers, paths=paths)

    def _check_stop(self) -> None:
        if self._stop():
            raise _StoppedError

    def _note_start(self, facts: SpawnFacts) -> None:
        notes = [f"rank processes start by {facts.start_method}"]
        notes += [f"because {facts.reason}"] if facts.reason else []
        notes += [f"preload failed: {facts.problem}"] if facts.problem else []
        self._record = replace(self._record, notes=(*self._record.notes, "; ".join(notes)))
        self.folder.write_run(self._record)

    def _one(self, item: Planned, runner: Runner, alone: Runner | None) -> str | None:
        """Run one scenario; return why nothing can run after it, None when the run goes on."""
        if item.missing is not None:
            self._not_run([item], item.missing)
            return None
        self._progress.begin(item.scenario.id)
        number = len(self._attempts.get(item.scenario.id, ())) + 1
        try:
            done = runner.run(item, number)
        except (SpawnerError, OSError, EOFError):
            # The forkserver or a worker is gone, or the disk is full: the next may fare better.
            self._conclude(item, self._verdicts.failed(item, number, traceback.format_exc()))
            return None
        if done.interrupted:
            return None  # the loop looks at the request next
        self._conclude(item, self._verdicts.attempt(item, number, done))
        if alone is not None:
            for other in done.shared_with:
                if self._stop():
                    break
                self._one(other, alone, None)
        return done.lost

    def _not_run(self, rest: Sequence[Planned], missing: str) -> None:
        for item in rest:
            self._progress.begin(item.scenario.id)
            self._conclude(item, self._verdicts.not_run(item, 1, missing))

    def _conclude(self, item: Planned, attempt: Attempt) -> None:
        scenario_id = item.scenario.id
        attempts = (*self._attempts.get(scenario_id, ()), attempt)
        rerun = commands.rerun_scenario(self._world, self._options, item.file, scenario_id)
        result = self._verdicts.result(item, attempts, rerun)
        self._attempts[scenario_id] = result.attempts
        self._results[scenario_id] = result
        self.folder.write_result(result)
        self._progress.finish(result)
