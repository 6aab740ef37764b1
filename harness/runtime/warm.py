"""One scenario after the other over rank processes that stay, for tools that run hundreds of them.

Isolation ``group`` underneath: processes that suit each other's scenarios form a generation, a
fault retires it, and the forkserver that forks the next one stays for as long as the tool runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Self

from harness.production.locate import activate, find_build
from harness.record.result import Attempt, ScenarioResult
from harness.record.verdict import Verdict
from harness.runtime import commands
from harness.runtime.attempts import Places
from harness.runtime.control import ControlServer, control_folder
from harness.runtime.devices import num_gpus
from harness.runtime.generation import SharedRunner
from harness.runtime.options import Options
from harness.runtime.plan import Planned, plan
from harness.runtime.processes import RankProcess
from harness.runtime.run_folder import RunFolder
from harness.runtime.spawner import Spawner, SpawnerError, SpawnFacts
from harness.runtime.starters import ENTRIES, Entry
from harness.runtime.supervisor import Supervisor
from harness.runtime.verdicts import Verdicts
from harness.runtime.world import World
from harness.scenario.spec import Scenario

GENERATIONS = 3
"""Generations that are kept at the same time: of different numbers of ranks, or levels."""

_NUMBERS = itertools.count()
"""Tells control sockets of one process apart."""

_LEAVES_NOTHING = frozenset(
    {
        Verdict.PASS,
        Verdict.WRONG_SELECTION,
        Verdict.OUT_OF_BOUNDS,
        Verdict.WRONG_VALUE,
        Verdict.WRONG_GRADIENT,
        Verdict.WRONG_PATH,
        Verdict.REFUSED,
        Verdict.NOT_RUN,
    }
)
"""Verdicts behind which the processes go on; after any other, the next scenario gets new ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """A scenario as the planner takes it."""

    scenario: Scenario
    file: str
    line: int = 1


class _OneStarter:
    """Starts every rank of this machine from one forkserver, on CPUs or GPUs."""

    def __init__(self, *, on_gpu: bool, paths: tuple[str, ...]) -> None:
        self._spawner = Spawner(cuda=on_gpu, paths=paths)

    def prepare(self, check: Callable[[], None]) -> SpawnFacts:
        """Start and probe the forkserver."""
        with _without_main():
            return self._spawner.prepare(check)

    def start(self, entry: Entry, request: str, local_rank: int) -> RankProcess:
        """Fork a child."""
        with _without_main():
            return self._spawner.start(ENTRIES[entry], request)

    def check(self) -> None:
        """See that the forkserver is there."""
        self._spawner.check()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which every child of a forkserver would import again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class WarmRanks:
    """Ranks that evaluate one scenario after the other; a context manager, main thread only.

    Attributes:
        evaluations: Scenarios evaluated so far.
        folder: Run folder with the files of kept attempts; without ``out`` a temporary one.
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        options: Options | None = None,
        out: Path | None = None,
        name: str = "warm",
        on_gpu: bool = False,
        stop: Callable[[], bool] = lambda: False,
        keep: Callable[[ScenarioResult], bool] = lambda result: False,
    ) -> None:
        """Set up; nothing is started before the ``with`` block.

        Args:
            num_ranks: Most ranks of a scenario; those with fewer get fewer.
            options: What a run's command line would say (Megatron checkout, injections, evidence,
                overrides); paths, output, isolation, repetition and jobs count for nothing.
            out: Folder for a run folder that stays, None for a temporary one.
            name: Name of the run folder.
            on_gpu: Whether ranks may use GPUs; otherwise modelled kernels only.
            stop: Asked several times a second while ranks run; True ends the attempt.
            keep: Tells whose journals, output and stacks stay on disk.
        """
        self._options = options or Options()
        self._world = World(world_size=num_ranks, local_world_size=num_ranks)
        self._out, self._name, self._on_gpu = out, name, on_gpu
        self._stop, self._keep = stop, keep
        self._stack = contextlib.ExitStack()
        self._runners: dict[str, SharedRunner] = {}
        self._idle: list[SharedRunner] = []
        self._servers = itertools.count()
        self._numbers: dict[str, int] = {}
        self.evaluations = 0

    def __enter__(self) -> Self:
        """Start the forkserver and wait for its imports.

        Raises:
            BuildError: if there is no such Megatron checkout.
            SpawnerError: if no rank process can be started.
            OSError: if a folder cannot be made.
        """
        with contextlib.ExitStack() as stack:
            build = find_build(self._options.megatron)
            stack.enter_context(_environment_kept())
            # Beside a socket of the same name, so that a later run clears up behind a killed one.
            self._socket = control_folder() / f"warm-{os.getpid()}-{next(_NUMBERS)}.sock"
            scratch = self._socket.with_suffix(".d")
            scratch.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            if not self._on_gpu:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
            activate(build)
            paths = (str(build.root),) if self._options.megatron else ()
            self.folder = RunFolder.create(self._out or scratch, self._name)
            self._places = Places(folder=self.folder, scratch=scratch, options=self._options)
            self._starter = _OneStarter(on_gpu=self._on_gpu, paths=paths)
            self._verdicts = Verdicts(self._options.judge, self._options.inject)
            self._supervisor = Supervisor(run_folder=self.folder.path, stop_requested=self._stop)
            self._starter.prepare(lambda: None)
            stack.callback(self.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """End all ranks and remove what is not kept."""
        self._stack.close()

    def close(self) -> None:
        """End all ranks; the next evaluation starts new ones."""
        for key in list(self._runners):
            self._retire(key)

    def planned(self, scenario: Scenario, *, file: str = "") -> Planned:
        """Give a scenario its ranks.

        Raises:
            UsageError: if it needs more ranks than there are, or an injection finds no rank in it.
        """
        given = _Given(scenario=scenario, file=file or f"{scenario.id}.yaml")
        gpus = num_gpus() if self._on_gpu else 0
        (item,) = plan([given], self._world, self._options, num_gpus=gpus)
        return item

    def evaluate(
        self, scenario: Scenario, *, alone: bool = False, file: str = ""
    ) -> ScenarioResult:
        """Run a scenario once and judge it.

        One that the run was asked to stop under has ``cut_short`` in its attempt.

        Args:
            scenario: What to run; equal ids are counted as attempts of one scenario.
            alone: In processes that ran nothing before.
            file: Where it is written, for the command that reruns it.

        Raises:
            UsageError: see ``planned``.
        """
        item = self.planned(scenario, file=file)
        if alone:
            self._retire(item.group_key)
        self.evaluations += 1
        number = self._numbers[scenario.id] = self._numbers.get(scenario.id, 0) + 1
        attempt = self._attempt(item, number)
        if attempt.verdict not in _LEAVES_NOTHING:
            self._retire(item.group_key)
        where = item.file.rpartition(":")[0] + ":1"
        rerun = commands.rerun_scenario(self._world, self._options, where, scenario.id)
        result = self._verdicts.result(item, (attempt,), rerun)
        if not self._keep(result):
            shutil.rmtree(self.folder.place(scenario.id, number), ignore_errors=True)
        return result

    def _attempt(self, item: Planned, number: int) -> Attempt:
        if item.missing is not None:
            return self._verdicts.not_run(item, number, item.missing)
        try:
            done = self._runner(item.group_key).run(item, number)
        except (SpawnerError, EOFError) as problem:
            self._retire(item.group_key)
            return self._verdicts.failed(item, number, f"{type(problem).__name__}: {problem}")
        return self._verdicts.attempt(item, number, done)

    def _runner(self, key: str) -> SharedRunner:
        """Return the runner of a kind of scenario; the one unused for longest makes room."""
        runner = self._runners.pop(key, None)
        if runner is None:
            while len(self._runners) >= GENERATIONS:
                self._retire(next(iter(self._runners)))
            runner = self._idle.pop() if self._idle else self._new_runner()
        self._runners[key] = runner
        return runner

    def _new_runner(self) -> SharedRunner:
        number = next(self._servers)
        stem = self._socket.stem
        path = self._socket.with_stem(f"{stem}-{number}") if number else self._socket
        server = ControlServer(path)
        self._stack.callback(path.unlink, missing_ok=True)
        self._stack.callback(server.close)
        return SharedRunner(self._places, self._starter, self._supervisor, server)

    def _retire(self, key: str) -> None:
        if runner := self._runners.pop(key, None):
            runner.close()
            self._idle.append(runner)


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    saved, path = dict(os.environ), list(sys.path)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)
        sys.path[:] = path
