"""Main functions of rank processes: one task, or one task after the other from the leader.

Light to import: torch comes in with the first task (in a forked child it is there already).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from harness.record.phase import Phase
from harness.runtime import control, link
from harness.runtime.address import address_from_json
from harness.runtime.blame import exception_evidence
from harness.runtime.collectives import journaled
from harness.runtime.coredump import core_dump_environment
from harness.runtime.cuda_errors import ContextProbe
from harness.runtime.death import die_with_parent
from harness.runtime.inject import PhaseInjector, for_rank
from harness.runtime.journal import EXCEPTION, Journal
from harness.runtime.preload_names import PRELOAD, PRELOAD_TORCH
from harness.runtime.pyspy import permit_tracing
from harness.runtime.rendezvous import open_store
from harness.runtime.stack_timer import StackTimer
from harness.runtime.storage import STORAGE_EXIT, is_storage
from harness.runtime.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

Engine = Callable[[Task, Journal], None]

_LAUNCHER_VARIABLES = ("TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFacts:
    """What the first child of a forkserver found.

    Attributes:
        failed: Traceback when the forkserver could not import torch.
        problem: Traceback of a failed import of the production modules.
        bad_fork: ``torch.cuda._is_in_bad_fork()``: True means that CUDA is lost in forked children.
        server_pid: Process id of the forkserver, of which there are ``server_threads`` threads.
    """

    failed: str | None = None
    problem: str | None = None
    bad_fork: bool = False
    server_pid: int = 0
    server_threads: int = 0


def answer_probe(connection: Connection) -> None:
    """Tell the parent what a child of its forkserver looks like."""
    if PRELOAD_TORCH not in sys.modules:
        # The forkserver swallows an ImportError of its preload; here it mostly comes up again.
        connection.send(ProbeFacts(failed=_import_error(PRELOAD_TORCH)))
        return
    import torch

    preload = sys.modules.get(PRELOAD)
    facts = ProbeFacts(
        problem=getattr(preload, "PROBLEM", None),
        bad_fork=torch.cuda._is_in_bad_fork(),
        server_pid=os.getppid(),
        server_threads=len(os.listdir(f"/proc/{os.getppid()}/task")),
    )
    connection.send(facts)


def _import_error(module: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError:
        return traceback.format_exc()
    return f"the forkserver could not import {module}, although its child can; is PYTHONPATH set?"


def run_single(request: str, parent_pid: int) -> NoReturn:
    """Run the one task in ``request`` and end the process: 0, or 1 after an exception."""
    _detach(parent_pid)
    with _leaving_when_full():
        leave(0 if run_task(Task.from_json(request)) else 1)


def run_member(request: str, parent_pid: int) -> NoReturn:
    """Join the leader at the control socket named in ``request`` and run the tasks it sends.

    The request is ``socket path`` and ``member name``, one a line; on another node than the
    leader's, its address as JSON and the name.
    """
    _detach(parent_pid)
    where, name = request.splitlines()
    channel = meet_leader(where, {"member": name})
    if channel is None:
        leave(1)
    leave(0 if serve(channel) else 1)


def meet_leader(where: str, hello: control.Message) -> control.Channel | None:
    """Connect to the leader at its socket path, or at its address in JSON; None when it is gone."""
    if not where.startswith("{"):
        return control.connect(Path(where), hello)
    joined = link.dial(address_from_json(where), hello)
    return joined.channel if isinstance(joined, link.Joined) else None


def serve(channel: control.Channel) -> bool:
    """Run the tasks that come over ``channel`` until it closes; False after an exception."""
    while (message := channel.receive()) is not None:
        with _leaving_when_full():
            done = run_task(Task.from_json(message["task"]), last=False)
        channel.send({"done": done})
        if not done:
            return False
    return True


def run_task(task: Task, *, last: bool = True) -> bool:
    """Run one task on this rank, everything journaled.

    Args:
        task: What to run.
        last: No further task follows: meet the other ranks once more before the end.

    Returns:
        True when the closing line of a complete run was written, False after an exception.
    """
    journal = Journal(task.journal, global_rank=task.global_rank)
    planted = for_rank(task.planted, task.scenario.id, task.global_rank)
    injector = PhaseInjector(planted, journal)
    journal.observers.append(injector)
    with _own_output(task), _own_stacks(task, journal):
        try:
            journal.phase(Phase.START)
            engine = _start(task)
            _watch_device(task, journal)
            with journaled(journal, device=task.device):
                journal.phase(Phase.RENDEZVOUS)
                _rendezvous(task)
                engine(task, journal)
            if last:
                # So that no rank's end closes a socket that another still reads from. Nothing is
                # torn down beyond that: it takes longer than a small scenario and proves nothing.
                _canary(task)
            else:
                _end_groups(task)
        except Exception as error:  # noqa: BLE001 (it becomes the rank's evidence)
            traceback.print_exc()
            journal.evidence(exception_evidence(error))
            journal.close(EXCEPTION)
            return False
        injector.note_unused()
        journal.close()
        return True


def _end_groups(task: Task) -> None:
    """End the groups of a task that others follow, when every rank is through with it.

    Megatron forgets its groups without ending them. Each keeps threads and memory (on a GPU a
    communicator), which would add up over the tasks of a process.
    """
    import torch.distributed as dist

    _canary(task)
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    # Modules hold groups in cycles, which the collector is in no hurry to find.
    gc.collect()


@contextlib.contextmanager
def _leaving_when_full() -> Iterator[None]:
    """End with a status of its own, and no traceback, where the journal cannot be written."""
    try:
        yield
    except OSError as error:
        if not is_storage(error):
            raise
        # Without a flush: what is buffered has nowhere to go.
        os._exit(STORAGE_EXIT)


def leave(code: int) -> NoReturn:
    """End without interpreter teardown.

    Peers must see closed sockets now, and no thread of a library may keep a finished rank alive.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _detach(parent_pid: int) -> None:
    """Take a session of its own and die with the process that forked this one."""
    os.setsid()
    server_pid = getattr(sys.modules.get(PRELOAD_TORCH), "SERVER_PID", os.getpid())
    # A spawned process may import the module itself; then the id in it is its own.
    die_with_parent(parent_pid if server_pid == os.getpid() else server_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _start(task: Task) -> Engine:
    """Set environment and threads of this rank and import its engine."""
    for name in list(os.environ):
        if name.startswith(_LAUNCHER_VARIABLES):
            del os.environ[name]
    os.environ |= {
        "RANK": str(task.global_rank),
        "LOCAL_RANK": str(task.local_rank),
        "WORLD_SIZE": str(task.world_size),
        "LOCAL_WORLD_SIZE": str(task.place.local_world_size or task.world_size),
    }
    if task.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif task.core_dumps:
        task.dumps.mkdir(exist_ok=True)
        os.environ |= core_dump_environment(task.dumps, os.environ)
    if task.place.interface:
        # A host name that resolves to nothing, or slowly, must not decide over a rendezvous.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", task.place.interface)
    import torch

    torch.set_num_threads(task.num_threads)
    module, _, function = task.engine.partition(":")
    engine: Engine = getattr(importlib.import_module(module), function)
    return engine


def _watch_device(task: Task, journal: Journal) -> None:
    """Look for CUDA errors at the end of each phase, unless the run shall be bare."""
    if task.device == "cuda" and not task.bare:
        import torch

        journal.leaving.append(ContextProbe(torch.cuda))


def _rendezvous(task: Task) -> None:
    """Form the process group, or keep that of an earlier task, and try one small collective."""
    import torch
    import torch.distributed as dist

    if task.device == "cuda":
        # Fewer devices than local ranks are seen where the launcher gives each worker its own.
        device = task.local_rank // task.ranks_per_gpu
        torch.cuda.set_device(device % torch.cuda.device_count())
    if dist.is_initialized() and dist.get_world_size() != task.world_size:
        dist.destroy_process_group()
    if not dist.is_initialized():
        dist.init_process_group(
            backend=backend_of(task),
            store=open_store(task),
            rank=task.global_rank,
            world_size=task.world_size,
            timeout=timedelta(seconds=task.limits.collective_s),
        )
    _canary(task)


def backend_of(task: Task) -> str:
    """Return the backend of torch.distributed: NCCL takes one rank a device, gloo any number."""
    if task.device == "cpu":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if task.ranks_per_gpu == 1 else "cpu:gloo,cuda:gloo"


def _canary(task: Task) -> None:
    """See that a small collective over all ranks gives the right number."""
    import torch
    import torch.distributed as dist

    canary = torch.full((1,), float(task.global_rank + 1), device=task.device)
    dist.all_reduce(canary)
    due = task.world_size * (task.world_size + 1) / 2
    if canary.item() != due:
        raise RuntimeError(f"canary all_reduce: expected {due}, found {canary.item()}")


@contextlib.contextmanager
def _own_output(task: Task) -> Iterator[None]:
    """Send standard output and error, of native code too, to the rank's files."""
    saved = []
    for number, path in ((1, task.stdout), (2, task.stderr)):
        _flush(number)
        saved.append((number, os.dup(number)))
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, number)
        os.close(target)
    try:
        yield
    finally:
        for number, old in saved:
            with contextlib.suppress(OSError):
                _flush(number)
            os.dup2(old, number)
            os.close(old)


def _flush(number: int) -> None:
    stream: TextIO = sys.stdout if number == 1 else sys.stderr
    stream.flush()


@contextlib.contextmanager
def _own_stacks(task: Task, journal: Journal) -> Iterator[None]:
    """Write Python stacks to the rank's file: on a fatal signal, on SIGUSR1, near a limit."""
    permit_tracing()
    with open(task.stacks, "a") as stream:
        faulthandler.enable(stream, all_threads=True)
        faulthandler.register(signal.SIGUSR1, stream, all_threads=True)
        timer = StackTimer(task.limits, stream)
        journal.observers.insert(0, timer)
        try:
            yield
        finally:
            timer.stop()
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.disable()
