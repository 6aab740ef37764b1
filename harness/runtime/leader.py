"""The leader of a run: make the run folder, execute, judge, write.

Runs in the worker with rank 0 and needs no torch there, except under isolation ``none``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.production.locate import activate
from harness.record.ending import results_code
from harness.record.phase import Phase
from harness.record.result import RunRecord, ScenarioResult
from harness.record.verdict import ExitCode
from harness.runtime import commands
from harness.runtime.attempts import Executed, FreshRunner, Places, Runner, utc_now
from harness.runtime.control import ControlServer, Meeting
from harness.runtime.fingerprint import collect
from harness.runtime.generation import SharedRunner
from harness.runtime.hub import Hub, NodeRequest
from harness.runtime.inline import InlineRunner
from harness.runtime.ledger import Ledger
from harness.runtime.nodes import LOCAL, Node
from harness.runtime.options import Options
from harness.runtime.plan import Planned
from harness.runtime.plan_file import RunPlan, write_plan
from harness.runtime.preflight import Preflight
from harness.runtime.progress import Progress, plain_line
from harness.runtime.resume import attempts_due, open_run
from harness.runtime.run_folder import RunFolder, RunFolderError
from harness.runtime.run_lock import RunLock
from harness.runtime.schedule import Budget, Ranks, num_jobs, side_by_side
from harness.runtime.spawner import NodeLostError, SpawnerError, SpawnFacts
from harness.runtime.starters import NodeStarter, Starter, WorkerStarter
from harness.runtime.stop import StopRequest
from harness.runtime.storage import is_storage, storage_problem
from harness.runtime.supervisor import Supervisor
from harness.runtime.world import World

_BY_SIGNAL = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


class _StoppedError(Exception):
    """The run was asked to stop while it prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """How a run ended.

    Attributes:
        error: What ended it before its time, said on standard error already.
    """

    folder: RunFolder
    record: RunRecord
    results: tuple[ScenarioResult, ...]
    exit_code: ExitCode
    duration_s: float
    error: str | None = None


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
        hub: Hub | None = None,
    ) -> None:
        """Make the run folder, or take over the one of a run that is resumed.

        Args:
            world: Ranks of the run.
            options: What was asked for.
            preflight: What the checks made of it.
            server: The control socket, listening.
            stop: Tells whether the run shall end early.
            describe: Words for a finished scenario on the console.
            hub: The other nodes, None on one node.

        Raises:
            RunFolderError: if that cannot be done, with one line that says what to change.
        """
        self._world = world
        self._options = options
        self._preflight = preflight
        self._server = server
        self._stop = stop
        self._hub = hub
        self._started_s = time.monotonic()
        name = options.name or Path(options.scenarios[0]).resolve().stem
        self._record = self._first_record(name)
        results: dict[str, ScenarioResult] = {}
        if options.resume is None:
            self.folder = RunFolder.create(Path(options.out), name)
            self._lock = self._begin()
        else:
            resumed = open_run(Path(options.resume).resolve(), self._record)
            self.folder, self._lock = resumed.folder, resumed.lock
            results = resumed.results
            self._record = self._continued(resumed.record, results)
        if options.folder_file is not None:
            Path(options.folder_file).write_text(str(self.folder.path))
        self._progress = Progress(len(preflight.planned), describe)
        self._progress.expect(item.scenario.id for item in self._planned)
        self._ledger = Ledger(self.folder, world, options, self._progress, results)
        self._scratch = server.path.with_suffix(".d")
        self._budget = Budget(options.budget)
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
            state="running",
        )

    def _begin(self) -> RunLock:
        """Lock the new folder and write what this run sets out to do."""
        try:
            lock = RunLock(self.folder.path)
            plan = RunPlan(
                options=self._options,
                isolation=self._preflight.isolation,
                supervision=self._preflight.supervision,
                world=self._world,
                scenarios=self._preflight.planned,
            )
            write_plan(self.folder.path, plan)
        except OSError as problem:
            reason = storage_problem(problem) or f"{self.folder.path}: {problem}"
            raise RunFolderError(reason) from problem
        return lock

    def _continued(self, before: RunRecord, results: Mapping[str, ScenarioResult]) -> RunRecord:
        """Return the record of a run that goes on; it ends anew, and says that it was resumed."""
        count = sum(attempts_due(i, results.get(i.scenario.id)) > 0 for i in self._planned)
        note = f"resumed at {utc_now()} with {count} of {len(self._planned)} scenarios to run"
        return replace(
            before,
            finished_at=None,
            exit_code=None,
            exit_meaning="",
            state="running",
            notes=(*before.notes, note, *self._preflight.warnings),
        )

    @property
    def _planned(self) -> tuple[Planned, ...]:
        return self._preflight.planned

    def run(self) -> RunEnd:
        """Execute all scenarios; every record is written when this returns."""
        self._progress.say(f"run folder {self.folder.path}")
        error: str | None = None
        try:
            self.folder.write_run(self._record)
            self._execute()
        except _StoppedError:
            pass
        except SpawnerError as problem:
            error = str(problem)
        except OSError as problem:
            error = storage_problem(problem) or traceback.format_exc()
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
        return results_code(self._ledger.results.values())

    def finish(self, code: ExitCode, error: str | None = None) -> RunEnd:
        """Write the final ``run.json``, again where a later step failed."""
        notes = self._record.notes + ((error,) if error is not None else ())
        self._record = replace(
            self._record,
            finished_at=utc_now(),
            exit_code=int(code),
            exit_meaning=code.meaning,
            state="interrupted" if code in _BY_SIGNAL else "finished",
            notes=notes,
        )
        try:
            self.folder.write_run(self._record)
        except OSError as problem:
            if storage_problem(problem) is None:
                raise
            # Said already; what stands on disk still says that the run was cut short.
        return RunEnd(
            folder=self.folder,
            record=self._record,
            results=tuple(self._ledger.results.values()),
            exit_code=code,
            duration_s=time.monotonic() - self._started_s,
            error=error,
        )

    def close(self) -> None:
        """Let others write the run folder."""
        self._lock.release()

    def _execute(self) -> None:
        due = [item for item in self._planned for _ in range(self._ledger.due(item))]
        due = due[: self._options.at_most]
        if not due:
            return
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        activate(self._preflight.build)
        with contextlib.ExitStack() as stack:
            try:
                runners = self._runners()
            except NodeLostError as problem:
                print(problem, file=sys.stderr, flush=True)  # noqa: T201
                self._lose(due, str(problem))
                return
            for runner in runners:
                stack.callback(runner.close)
            jobs = num_jobs(self._options, due, self._world)
            if jobs > 1:
                self._side_by_side(due, jobs, runners[0])
            else:
                self._in_turn(due, *runners)

    def _in_turn(self, due: Sequence[Planned], runner: Runner, alone: Runner | None = None) -> None:
        for index, item in enumerate(due):
            if self._stop():
                return
            if self._hub is not None and (gone := self._hub.lost) is not None:
                self._lose(due[index:], gone)
                return
            if self._budget.spent:
                self._ledger.lose(due[index:], self._budget.missing)
                return
            lost = self._one(item, runner, alone)
            if lost is not None:
                self._lose(due[index + 1 :], lost)
                return

    def _side_by_side(self, due: Sequence[Planned], jobs: int, runner: Runner) -> None:
        def run(item: Planned, number: int) -> Executed:
            self._progress.begin(item.scenario.id)
            return runner.run(item, number)

        self._in_turn([item for item in due if item.missing is not None], runner)
        ended = side_by_side(
            [item for item in due if item.missing is None],
            ranks=Ranks(self._world.world_size),
            jobs=jobs,
            number=self._ledger.next_number,
            run=run,
            stop=lambda: self._stop() or self._budget.spent,
        )
        for item, number, done in ended:
            self._take(item, number, done)
        if self._budget.spent and not self._stop():
            rest = [item for item in due if self._ledger.due(item)]
            self._ledger.lose(rest, self._budget.missing)

    def _runners(self) -> tuple[Runner, ...]:
        """Return the runner of this run, and the one that repeats a scenario alone, if any."""
        places = Places(folder=self.folder, scratch=self._scratch, options=self._options)
        isolation = self._preflight.isolation
        if isolation == "none":
            workers = self._world.local_world_size
            return (InlineRunner(places, self._server, workers, self._stop),)
        starter = self._starter()
        meeting: Meeting = self._server
        nodes: tuple[Node, ...] = (LOCAL,)
        if self._hub is not None:
            on_gpu = any(item.device == "cuda" for item in self._planned)
            self._hub.join(self._check_stop, on_gpu=on_gpu)
            places.layout = self._hub.layout()
            starter = self._hub.starter(starter, self._node_request())
            meeting = self._hub.meeting(self._server)
            nodes = self._hub.nodes
        self._note_start(starter.prepare(self._check_stop))
        supervisor = Supervisor(
            run_folder=self.folder.path,
            stop_requested=self._stop,
            heartbeat=self._beat,
            nodes=nodes,
        )
        fresh = FreshRunner(places, starter, supervisor)
        if isolation == "scenario":
            return (fresh,)
        return SharedRunner(places, starter, supervisor, meeting), fresh

    def _node_request(self) -> NodeRequest:
        return NodeRequest(
            run=self.folder.path,
            supervision=self._preflight.supervision,
            paths=self._paths,
            hide_gpus=os.environ.get("CUDA_VISIBLE_DEVICES") == "",
            megatron=self._options.megatron,
            environment=self._record.environment,
        )

    @property
    def _paths(self) -> tuple[str, ...]:
        """Folders that come first on the module path of rank processes."""
        return (str(self._preflight.build.root),) if self._options.megatron else ()

    def _beat(self, phases: Mapping[int, Phase], since_s: float) -> None:
        self._lock.sign()
        self._progress.beat(phases, since_s)

    def _starter(self) -> Starter:
        if all(item.device == "cpu" for item in self._preflight.planned):
            # Modelled kernels beside a GPU: nothing may find it, the preload included.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if self._preflight.supervision == "node":
            return NodeStarter(paths=self._paths)
        num_workers = max(item.num_ranks for item in self._planned)
        if self._options.jobs != 1:
            num_workers = self._world.local_world_size
        num_workers = min(num_workers, self._world.local_world_size)
        return WorkerStarter(self._server, num_workers, paths=self._paths)

    def _check_stop(self) -> None:
        if self._stop():
            raise _StoppedError

    def _note_start(self, facts: SpawnFacts) -> None:
        notes = [f"rank processes start by {facts.start_method}"]
        notes += [f"because {facts.reason}"] if facts.reason else []
        notes += [f"preload failed: {facts.problem}"] if facts.problem else []
        more = ("; ".join(notes), *facts.warnings)
        self._record = replace(self._record, notes=(*self._record.notes, *more))
        for warning in facts.warnings:
            print(warning, file=sys.stderr, flush=True)  # noqa: T201
        self.folder.write_run(self._record)

    def _one(self, item: Planned, runner: Runner, alone: Runner | None) -> str | None:
        """Make one attempt; return why nothing can run after it, None when the run goes on."""
        self._progress.begin(item.scenario.id)
        if item.missing is not None:
            self._ledger.missing(item, item.missing)
            return None
        number = self._ledger.next_number(item)
        return self._take(item, number, lambda: runner.run(item, number), alone)

    def _take(
        self,
        item: Planned,
        number: int,
        done: Callable[[], Executed],
        alone: Runner | None = None,
    ) -> str | None:
        """Write an attempt down, and run again alone what shared processes with its fault."""
        try:
            executed = done()
        except (SpawnerError, OSError, EOFError) as problem:
            if isinstance(problem, OSError) and is_storage(problem):
                raise
            # The forkserver or a worker is gone: the next may fare better.
            self._ledger.failed(item, number, traceback.format_exc())
            return None
        self._ledger.executed(item, number, executed)
        if alone is not None and executed.cut_short is None:
            others = {other.scenario.id: other for other in executed.shared_with}
            others.pop(item.scenario.id, None)
            for other in others.values():
                if self._stop():
                    break
                self._one(other, alone, None)
        return executed.lost

    def _lose(self, rest: Sequence[Planned], missing: str) -> None:
        self._lost = True
        self._ledger.lose(rest, missing)
