"""What the CUDA tools report of memory faults: compute-sanitizer findings and core dumps."""

from __future__ import annotations

from dataclasses import dataclass

Index = tuple[int, ...]
"""x, y and z of a thread or block; empty where the tool does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SanitizerFinding:
    """One record of compute-sanitizer's XML output.

    Attributes:
        tool: ``memcheck``, ``racecheck``, ``initcheck`` or ``synccheck``.
        kind: The tool's own word, such as ``Precise``, ``Race condition`` or ``Api``.
        level: ``Error``, ``Warning`` or ``Info``.
        text: What the tool says.
        space: Memory space, such as ``global`` or ``shared``.
        direction: ``read``, ``write`` or ``atomic``.
        size: Bytes of the access.
        address: Hexadecimal.
        allocation: What the tool says of the nearest allocation.
        kernel: Function that made the access.
        source: ``file:line`` in it where it was built with line information.
        stack: Functions of the host stack, innermost first.
    """

    tool: str
    global_rank: int | None = None
    kind: str = ""
    level: str = ""
    text: str = ""
    space: str = ""
    direction: str = ""
    size: int | None = None
    address: str = ""
    allocation: str = ""
    kernel: str = ""
    source: str = ""
    thread: Index = ()
    block: Index = ()
    stack: tuple[str, ...] = ()

    @property
    def is_fault(self) -> bool:
        """True for an error on the device; API errors and leaks are facts beside it."""
        return self.level.lower() in ("", "error", "fatal") and not _aside(self.kind)


def _aside(kind: str) -> bool:
    word = kind.lower()
    return word.startswith("api") or "leak" in word or "unused" in word


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpedKernel:
    """One line of cuda-gdb's ``info cuda kernels``.

    Attributes:
        focus: True for the kernel in focus, the one that faulted.
        invocation: Name, with arguments where the dump has them.
    """

    kernel: int
    device: int
    grid: int
    status: str
    grid_dim: Index
    block_dim: Index
    invocation: str
    focus: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreDump:
    """What cuda-gdb says of one CUDA core dump.

    Attributes:
        file: Path inside the run folder.
        exception: Such as ``Warp Illegal Address``.
        pc: Address of the faulting instruction, hexadecimal.
        function: Function it belongs to.
        frames: Lines of the backtrace, without their numbers.
        problem: Why cuda-gdb said less than it could, empty otherwise.
    """

    file: str
    global_rank: int | None = None
    exception: str = ""
    pc: str = ""
    function: str = ""
    device: int | None = None
    sm: int | None = None
    block: Index = ()
    thread: Index = ()
    kernels: tuple[DumpedKernel, ...] = ()
    frames: tuple[str, ...] = ()
    problem: str = ""
