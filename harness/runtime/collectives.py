"""Journals every collective call of a rank before it is made and after it came back.

The entry points are wrapped once per process and stay so; the wrappers do nothing until a rank's
journal is attached. Names that the build's modules bound at import are bound again. Only the
outermost call counts: what an entry point of torch calls on the way is its own affair.

Torch is imported when a journal is attached, not before.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.runtime.blame import BUILD_PACKAGES
from harness.runtime.collective_entries import (
    ENTRIES,
    FUNCTIONAL_ENTRIES,
    Entry,
    Function,
    Reader,
)
from harness.runtime.collective_lines import CALL, END, GROUP
from harness.runtime.collective_waits import Waits, wrapped_wait

if TYPE_CHECKING:
    from harness.record.phase import Phase
    from harness.runtime.journal import Journal

_BUILD = frozenset(BUILD_PACKAGES)
_CALLERS_KEPT = 3
_FRAMES_LOOKED_AT = 60
_TEXTS_KEPT = 4096
_FUNCTIONAL = "torch.distributed._functional_collectives"


class _Active(threading.local):
    """Whether this thread is inside a journaled call already."""

    inside = False


_active = _Active()
_recorder: Recorder | None = None
_originals: dict[tuple[str, str], Function] = {}
"""(module, attribute) to the function it held before it was wrapped."""
_wrappers: dict[int, Function] = {}
"""Identity of an original function to its wrapper."""
_rebound: list[str] = []
"""Name of the youngest module whose early references are bound again, if any."""
_original_wait: Function | None = None
"""``Work.wait`` before it was wrapped."""


class _Facts(NamedTuple):
    """What a call says about its tensors; equal facts give equal text."""

    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: object = None
    reduction: str = ""
    peer: int | None = None
    pairwise: bool = False
    asynchronous: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of the journal line, those that say nothing left out."""
        dtype = "" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        fields = {
            "in": self.inputs,
            "out": self.outputs,
            "dtype": dtype,
            "reduce": self.reduction.removeprefix("RedOpType."),
            "peer": self.peer,
            "pair": self.pairwise,
            "async": self.asynchronous,
        }
        said = {key: value for key, value in fields.items() if value}
        return said if self.peer is None else {**said, "peer": self.peer}


class Recorder:
    """Writes one rank's calls to its journal."""

    def __init__(self, journal: Journal, *, device: str) -> None:
        """Number the calls from 0.

        Args:
            journal: Where the lines go.
            device: ``cuda`` where tensors on a GPU make a call return before it is complete.
        """
        self._journal = journal
        self._cuda = device == "cuda"
        # Waiting for an operation on GPU tensors only orders streams, and says nothing.
        self.waits = None if self._cuda else Waits(journal)
        self._numbers = itertools.count()
        self._sequences: dict[tuple[str, str, int | None], int] = {}
        self._groups: dict[tuple[str, int], tuple[int, ...]] = {}
        self._texts: dict[object, str] = {}
        self._lock = threading.Lock()

    def enter(self, entry: Entry, reader: Reader, args: Any, kwargs: Any) -> int | None:
        """Write the line before a call.

        Returns:
            The call's number for ``leave``, None when this rank takes no part in the call.
        """
        group = _group(reader.get("group", args, kwargs), functional=entry.functional)
        if group is None:
            return None
        name = str(group.group_name)
        callers = _callers(sys._getframe(2))
        with self._lock:
            ranks = self._ranks(group, name)
            facts = self._facts(entry, reader, args, kwargs, ranks)
            key = (name, _direction(entry), facts.peer if entry.pairwise else None)
            sequence = self._sequences.get(key, 0)
            self._sequences[key] = sequence + 1
            number = next(self._numbers)
        text = self._text(name, entry, facts, callers)
        self._journal.put(f'"e": "{CALL}", "n": {number}, "seq": {sequence}, {text}')
        return number

    def _text(self, name: str, entry: Entry, facts: _Facts, callers: tuple[str, ...]) -> str:
        """Return the part of a line that is the same for every call of this kind and place."""
        key = (name, entry.operation, facts, callers)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _TEXTS_KEPT:
                self._texts.clear()
            fields = {"group": name, "op": entry.operation, **facts.fields(), "at": callers}
            text = self._texts[key] = json.dumps(fields)[1:-1]
        return text

    def leave(self, number: int, error: BaseException | None) -> None:
        """Write the line after a call."""
        more = f', "error": {json.dumps(type(error).__name__)}' if error is not None else ""
        self._journal.put(f'"e": "{END}", "n": {number}{more}')

    def _ranks(self, group: Any, name: str) -> tuple[int, ...]:
        key = (name, id(group))
        ranks = self._groups.get(key)
        if ranks is None:
            import torch.distributed as dist

            ranks = self._groups[key] = tuple(dist.get_process_group_ranks(group))
            label = str(group.group_desc)
            label = "" if label == "undefined" else label
            self._journal.event(GROUP, name=name, label=label, ranks=list(ranks))
        return ranks

    def _facts(
        self, entry: Entry, reader: Reader, args: Any, kwargs: Any, ranks: tuple[int, ...]
    ) -> _Facts:
        """Describe a call's tensors; a wrong argument is torch's to refuse, not ours."""
        try:
            given = _tensors(reader, entry.inputs, args, kwargs)
            received = _tensors(reader, entry.outputs, args, kwargs)
            tensors = given or received
            reduction = reader.get("op", args, kwargs)
            return _Facts(
                inputs=tuple([tuple(tensor.shape) for tensor in given]),
                outputs=tuple([tuple(tensor.shape) for tensor in received]),
                dtype=tensors[0].dtype if tensors else None,
                reduction=str(reduction) if reduction is not None else "",
                peer=_peer(reader, entry.root, args, kwargs, ranks) if entry.root else None,
                pairwise=entry.pairwise,
                asynchronous=self._is_asynchronous(entry, reader, args, kwargs, tensors),
            )
        except Exception:  # noqa: BLE001 (the call itself is about to say what is wrong)
            return _Facts(pairwise=entry.pairwise, asynchronous=entry.asynchronous)

    def _is_asynchronous(
        self, entry: Entry, reader: Reader, args: Any, kwargs: Any, tensors: list[Any]
    ) -> bool:
        if entry.asynchronous or reader.get("async_op", args, kwargs):
            return True
        return self._cuda and any(tensor.device.type == "cuda" for tensor in tensors)


def _group(group: Any, *, functional: bool) -> Any:
    """Return the process group of a call, None where there is none or this rank is not in it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return None
    if group is None:
        return dist.group.WORLD
    if functional and not isinstance(group, dist.ProcessGroup):
        collectives = sys.modules[_FUNCTIONAL]
        try:
            name = collectives._resolve_group_name(group)
            return dist.distributed_c10d._resolve_process_group(name)
        except Exception:  # noqa: BLE001 (the call itself is about to say what is wrong)
            return None
    return group if isinstance(group, dist.ProcessGroup) else None


def _tensors(reader: Reader, names: tuple[str, ...], args: Any, kwargs: Any) -> list[Any]:
    found: list[Any] = []
    for name in names:
        value = reader.get(name, args, kwargs)
        found += value if isinstance(value, (list, tuple)) else [value]
    return [tensor for tensor in found if tensor is not None]


def _peer(
    reader: Reader, names: tuple[str, str], args: Any, kwargs: Any, ranks: tuple[int, ...]
) -> int | None:
    inside = reader.get(names[1], args, kwargs)
    if inside is not None:
        return ranks[int(inside)]
    given = reader.get(names[0], args, kwargs)
    return None if given is None else int(given)


def _direction(entry: Entry) -> str:
    """Calls are numbered apart: collectives, sends and receives."""
    if not entry.pairwise:
        return ""
    return "send" if entry.root == ("dst", "group_dst") else "recv"


def _callers(frame: FrameType | None) -> tuple[str, ...]:
    """Return the innermost caller outside torch as ``file:line``, and who in the build called it.

    One per file: a line inside Megatron's own wrappers of collectives serves many callers.
    """
    found: list[str] = []
    file = ""
    for _ in range(_FRAMES_LOOKED_AT):
        if frame is None or len(found) == _CALLERS_KEPT:
            break
        module = str(frame.f_globals.get("__name__", ""))
        wanted = module.partition(".")[0] in _BUILD if found else not module.startswith("torch.")
        if wanted and module != __name__ and frame.f_code.co_filename != file:
            file = frame.f_code.co_filename
            found.append(f"{_short(module, file)}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)


@functools.cache
def _short(module: str, path: str) -> str:
    """Shorten a source path to the part that the module's name spells out."""
    parts = path.split("/")
    depth = module.count(".") + 1 + (parts[-1] == "__init__.py")
    return "/".join(parts[-depth:])


def _wrapped(entry: Entry, original: Function) -> Function:
    reader = Reader(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None or _active.inside or _compiling():
            return original(*args, **kwargs)
        number = recorder.enter(entry, reader, args, kwargs)
        if number is None:
            return original(*args, **kwargs)
        _active.inside = True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _active.inside = False
            recorder.leave(number, error)
            raise
        _active.inside = False
        recorder.leave(number, None)
        if recorder.waits is not None:
            recorder.waits.expect(result, number)
        return result

    return call


def _compiling() -> bool:
    # Where Dynamo traces, it must meet torch's own functions, which it knows how to replace.
    import torch

    return torch.compiler.is_compiling()


def _places() -> Iterator[tuple[ModuleType, Entry]]:
    """Modules and the entries to wrap in them."""
    import torch.distributed as dist

    for entry in ENTRIES:
        # The inner module too: P2POp compares with the functions that it holds.
        yield dist.distributed_c10d, entry
        yield dist, entry
    functional = sys.modules.get(_FUNCTIONAL)
    if functional is not None:
        for entry in FUNCTIONAL_ENTRIES:
            yield functional, entry


def install() -> None:
    """Wrap what is not wrapped yet, and bind early references of the build's modules again."""
    for module, entry in _places():
        current = getattr(module, entry.name, None)
        key = (module.__name__, entry.name)
        if current is None or key in _originals:
            continue
        if id(current) not in _wrappers:
            _wrappers[id(current)] = _wrapped(entry, current)
        _originals[key] = current
        setattr(module, entry.name, _wrappers[id(current)])
        _rebound.clear()
    _install_wait()
    youngest = next(reversed(sys.modules))
    replacements = {id(original): _wrappers[id(original)] for original in _originals.values()}
    _rebind(replacements, _younger_modules() if _rebound else tuple(sys.modules))
    _rebound[:] = [youngest]


def _younger_modules() -> tuple[str, ...]:
    """Names of modules imported since the last time; a forked child looks at those alone.

    Reading the others' attributes would copy most pages of what the forkserver imported.
    """
    return tuple(itertools.takewhile(lambda name: name != _rebound[0], reversed(sys.modules)))


def _install_wait() -> None:
    import torch.distributed as dist

    global _original_wait
    work: Any = dist.Work
    if _original_wait is None:
        _original_wait = work.wait
        work.wait = wrapped_wait(work.wait, _current_waits)


def _current_waits() -> Waits | None:
    return None if _recorder is None or _active.inside else _recorder.waits


def _install_late(phase: Phase) -> None:
    """Wrap the functional collectives where the build has imported them only now."""
    if _FUNCTIONAL in sys.modules and (_FUNCTIONAL, "all_reduce") not in _originals:
        install()


def uninstall() -> None:
    """Put everything back, for processes that go on with something else."""
    for (name, attribute), original in _originals.items():
        setattr(sys.modules[name], attribute, original)
    _rebind({id(_wrappers[id(o)]): o for o in _originals.values()}, tuple(sys.modules))
    _originals.clear()
    _wrappers.clear()
    _rebound.clear()
    _uninstall_wait()


def _uninstall_wait() -> None:
    import torch.distributed as dist

    global _original_wait
    if _original_wait is not None:
        work: Any = dist.Work
        work.wait = _original_wait
        _original_wait = None


def _rebind(replacements: dict[int, Function], names: Iterable[str]) -> None:
    for name in names:
        module = sys.modules.get(name)
        if module is None or name.partition(".")[0] not in BUILD_PACKAGES:
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in replacements:
                setattr(module, attribute, replacements[id(value)])


@contextlib.contextmanager
def journaled(journal: Journal, *, device: str = "cpu") -> Iterator[None]:
    """Journal this process's collective calls while the block runs.

    Args:
        journal: The rank's journal.
        device: Device of the rank's tensors, ``cpu`` or ``cuda``.
    """
    global _recorder
    install()
    journal.observers.append(_install_late)
    before, _recorder = _recorder, Recorder(journal, device=device)
    try:
        yield
    finally:
        _recorder = before
        journal.observers.remove(_install_late)
