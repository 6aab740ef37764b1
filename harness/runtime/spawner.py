"""Starts rank processes: a forkserver with the imports already done, or plain spawn."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from harness.runtime.child import ProbeFacts, answer_probe
from harness.runtime.limits import PRELOAD_S
from harness.runtime.nodes import LOCAL, Node
from harness.runtime.preload_names import PARENT_VARIABLE, PRELOAD, PRELOAD_TORCH
from harness.runtime.processes import process_state

StartMethod = Literal["forkserver", "spawn"]

_PROJECT_ROOT = str(Path(__file__).resolve().parents[2])


_PROCESSES = threading.RLock()
"""Held while multiprocessing looks at its processes: a start polls all of them, and of two threads
that poll one process only one gets its exit code."""


class SpawnerError(RuntimeError):
    """No rank process can be started; the message holds what the first one said."""


class NodeLostError(SpawnerError):
    """A node of the run is not there, or not any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpawnFacts:
    """How rank processes are started, for the record.

    Attributes:
        reason: Why, where it is not the usual way.
        problem: Traceback of a failed preload, None when it worked.
        server_threads: Operating-system threads of the forkserver after the preload.
        warnings: What is odd about the nodes of a run over several, a sentence each.
    """

    start_method: StartMethod
    reason: str = ""
    problem: str | None = None
    server_threads: int = 0
    warnings: tuple[str, ...] = ()


class LocalChild:
    """A rank process started by this process."""

    node: Node = LOCAL
    lost: str | None = None
    ended_s: float | None = None

    def __init__(self, process: BaseProcess) -> None:
        """Wrap a started process."""
        assert process.pid is not None
        self._process = process
        self._exit: int | None = None
        self.pid = process.pid

    def filenos(self) -> tuple[int, ...]:
        """Return the sentinel."""
        return (int(self._process.sentinel),) if self._exit is None else ()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        if self._exit is None:
            with _PROCESSES:
                self._exit = self._process.exitcode
        return self._exit

    def alive(self) -> bool:
        """Tell whether the end was not seen yet."""
        return self.poll() is None

    def close(self) -> None:
        """Release the sentinel; the process has ended or is beyond reach."""
        if not self.alive():
            with _PROCESSES:
                self._process.close()


class Spawner:
    """Starts rank processes of one worker.

    Start it and its children from the main thread: the kernel ties "die with the parent" to the
    thread that forked.
    """

    def __init__(self, *, cuda: bool, paths: Sequence[str] = ()) -> None:
        """Choose the preload: torch alone where children shall use CUDA.

        Args:
            cuda: Whether children shall use CUDA.
            paths: Folders that come first on the module path, such as a Megatron checkout.
        """
        self._cuda = cuda
        self._paths = [*paths, _PROJECT_ROOT]
        self._context: ForkServerContext | SpawnContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD_TORCH if cuda else PRELOAD])
        self._server_pid: int | None = None

    def prepare(self, check: Callable[[], None] = lambda: None) -> SpawnFacts:
        """Start the forkserver, wait for its imports and probe a first child.

        Args:
            check: Called a few times a second while the imports run; may raise to stop waiting.

        Raises:
            SpawnerError: if the probe child fails or does not answer in time.
        """
        os.environ[PARENT_VARIABLE] = str(os.getpid())
        # The forkserver is a fresh interpreter and does not inherit sys.path.
        rest = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        os.environ["PYTHONPATH"] = os.pathsep.join([*self._paths, *rest])
        facts = self._probe(check)
        if facts.failed is not None:
            raise SpawnerError(f"the first rank process could not import torch:\n{facts.failed}")
        if not (self._cuda and facts.bad_fork):
            self._server_pid = facts.server_pid
            return SpawnFacts(
                start_method="forkserver",
                problem=facts.problem,
                server_threads=facts.server_threads,
            )
        self._context = multiprocessing.get_context("spawn")
        reason = "torch.cuda._is_in_bad_fork() is True in a child of the torch-only forkserver"
        return SpawnFacts(start_method="spawn", reason=reason)

    def _probe(self, check: Callable[[], None]) -> ProbeFacts:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=answer_probe, args=(theirs,))
        try:
            process.start()
        except (EOFError, OSError) as error:
            ours.close()
            raise SpawnerError(
                "the forkserver ended during its imports; its messages stand above"
            ) from error
        finally:
            theirs.close()
        try:
            for _ in range(round(PRELOAD_S / 0.2)):
                check()
                if ours.poll(0.2):
                    facts: ProbeFacts = ours.recv()
                    process.join()
                    return facts
        except EOFError:
            process.join()
            raise SpawnerError(
                f"the probe process ended with exit code {process.exitcode} before it answered; "
                "its messages stand above"
            ) from None
        finally:
            ours.close()
        process.kill()
        raise SpawnerError(
            f"torch and the production modules were not imported within {PRELOAD_S:.0f} s; "
            "is the file system of the Python environment slow?"
        )

    def check(self) -> None:
        """See that the forkserver is there; without it, no exit code of its children is known.

        Raises:
            SpawnerError: if it has ended; the next start makes a new one.
        """
        if self._server_pid is None or process_state(self._server_pid) not in (None, "Z"):
            return
        pid, self._server_pid = self._server_pid, None
        raise SpawnerError(
            f"the forkserver (process {pid}) ended, and all rank processes with it; look for the "
            "kernel's out-of-memory killer in dmesg"
        )

    def start(self, target: Callable[[str, int], None], request: str) -> LocalChild:
        """Start one process that runs ``target(request, parent_pid)``.

        Raises:
            SpawnerError: if the forkserver was lost and no new one can be made.
        """
        with _PROCESSES:
            if self._server_pid is None and self._context.get_start_method() == "forkserver":
                self.prepare()
            process = self._context.Process(target=target, args=(request, os.getpid()))
            process.start()
        return LocalChild(process)
