"""CUDA core dumps: the variables that ask for them, and what cuda-gdb reads out of one.

The light set leaves out all device memory: a dump then holds registers, the faulting instruction
and the call stack, some megabytes instead of the whole GPU. No GPU is needed to look at a dump.
Names of variables, flags and commands: https://docs.nvidia.com/cuda/cuda-gdb/index.html
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.record.device_fault import CoreDump, DumpedKernel, Index
from harness.record.result import RankOutcome

FILE_PREFIX = "cuda"
"""Dumps are called ``cuda.<host>.<pid>.<time>``."""
MOST_DUMPS = 4
"""Dumps looked at per attempt: the first says it all, the others follow from it."""
GDB_S = 60.0
"""How long cuda-gdb gets for one dump."""

_LIGHT = (
    "skip_nonrelocated_elf_images",
    "skip_global_memory",
    "skip_shared_memory",
    "skip_local_memory",
    "skip_constbank_memory",
    # Without it the process ends in SIGABRT, and the error's code never reaches its exception.
    "skip_abort",
)
_LONGEST_OUTPUT = 2**20
_LONGEST_LINE = 4000
_MOST_FRAMES = 32
_SAFE_NAME = re.compile(r"[A-Za-z0-9._-]+")

_EXCEPTION = re.compile(r"^CUDA Exception: (?P<name>.+?)\s*$", re.MULTILINE)
_PC = re.compile(r"triggered at PC (?P<pc>0x[0-9a-f]+)[ \t]*(?P<function>[^\n]*)")
_FOCUS = re.compile(
    r"focus set to CUDA kernel (?P<kernel>\d{1,18}), grid (?P<grid>-?\d{1,18}), "
    r"(?:cluster \S+ )?block \((?P<block>[\d,]{1,60})\), thread \((?P<thread>[\d,]{1,60})\), "
    r"device (?P<device>\d{1,18}), sm (?P<sm>\d{1,18})"
)
_KERNEL = re.compile(
    r"^(?P<focus>\*)?\s+(?P<kernel>\d{1,18})\s+\S+\s+(?P<device>\d{1,18})\s+(?P<grid>-?\d{1,18})\s+"
    r"(?P<status>\S+)\s+0x\S+\s+(?:\([\d,]{1,60}\)\s+(?=\([\d,]{1,60}\)\s+\([\d,]{1,60}\)))?"
    r"\((?P<grid_dim>[\d,]{1,60})\)\s+\((?P<block_dim>[\d,]{1,60})\)\s+(?P<invocation>.+?)\s*$"
)
_FRAME = re.compile(r"^#\d+\s+(?P<text>.+?)\s*$")


def core_dump_environment(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add before a process first uses CUDA; what the user has set stays.

    Args:
        folder: Where dumps go, node-local where the run folder is on a parallel file system.
        env: The environment as it is.
    """
    wanted = {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_COREDUMP_FILE": str(folder / f"{FILE_PREFIX}.%h.%p.%t"),
        "CUDA_COREDUMP_SHOW_PROGRESS": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(_LIGHT),
    }
    return {name: value for name, value in wanted.items() if name not in env}


def find_cuda_gdb() -> str | None:
    """Return the program: on the path or in the toolkit; it is in no wheel."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("cuda-gdb") or shutil.which("cuda-gdb", path=str(home / "bin"))


def gdb_command(program: str, name: str) -> list[str]:
    """Return the command that shows a dump in the current folder.

    Raises:
        ValueError: for a file name that gdb would read as anything but a name.
    """
    if not _SAFE_NAME.fullmatch(name) or name.startswith("-"):
        raise ValueError(f"core dump {name!r}: expected letters, digits, '.', '_' and '-' only")
    # No start-up files: a run folder may come from anywhere.
    start = [program, "-batch", "-nx", "-iex", "set auto-load off", "-iex", "set pagination off"]
    return [*start, "-ex", f"target cudacore {name}", "-ex", "info cuda kernels", "-ex", "bt"]


def inspect(file: Path, folder: Path, *, limit_s: float = GDB_S) -> CoreDump:
    """Look at one dump with cuda-gdb; why that failed is part of the answer.

    Args:
        file: The dump.
        folder: Run folder, to which the record's path is relative.
        limit_s: When cuda-gdb is given up.
    """
    shown = os.path.relpath(file, folder)
    program = find_cuda_gdb()
    if program is None:
        return CoreDump(file=shown, problem="cuda-gdb was not found; it is part of the toolkit")
    try:
        command = gdb_command(program, file.name)
        done = subprocess.run(
            command,
            cwd=file.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except (ValueError, OSError) as error:
        return CoreDump(file=shown, problem=str(error))
    except subprocess.TimeoutExpired:
        return CoreDump(file=shown, problem=f"cuda-gdb did not finish within {limit_s:.0f} s")
    dump = parse_gdb_output(done.stdout[:_LONGEST_OUTPUT].decode(errors="replace"), shown)
    if dump.exception or dump.frames:
        return dump
    error_lines = done.stderr.decode(errors="replace").strip().splitlines()
    reason = error_lines[-1][:300] if error_lines else f"exit status {done.returncode}"
    return replace(dump, problem=f"cuda-gdb showed no exception: {reason}")


def parse_gdb_output(text: str, file: str) -> CoreDump:
    """Read what the three commands print; whatever is missing stays empty."""
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    text = "\n".join(lines)
    exception = _EXCEPTION.search(text)
    pc = _PC.search(text)
    focus = _FOCUS.search(text)
    kernels = tuple(_kernel(match) for line in lines if (match := _KERNEL.match(line)))
    return CoreDump(
        file=file,
        exception=exception["name"] if exception else "",
        pc=pc["pc"] if pc else "",
        function=pc["function"].strip() if pc else "",
        device=int(focus["device"]) if focus else None,
        sm=int(focus["sm"]) if focus else None,
        block=_index(focus["block"]) if focus else (),
        thread=_index(focus["thread"]) if focus else (),
        kernels=kernels,
        frames=_frames(lines),
    )


def _kernel(match: re.Match[str]) -> DumpedKernel:
    return DumpedKernel(
        kernel=int(match["kernel"]),
        device=int(match["device"]),
        grid=int(match["grid"]),
        status=match["status"],
        grid_dim=_index(match["grid_dim"]),
        block_dim=_index(match["block_dim"]),
        invocation=match["invocation"],
        focus=match["focus"] is not None,
    )


def _index(text: str) -> Index:
    return tuple(int(part) for part in text.split(",") if part)


def _frames(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the frames of the backtrace; opening a dump shows frame 0 once by itself."""
    found = [match["text"] for line in lines if (match := _FRAME.match(line))]
    if len(found) > 1 and found[0] == found[1]:
        del found[0]
    return tuple(found[:_MOST_FRAMES])


def collect(folder: Path, run_folder: Path, ranks: Sequence[RankOutcome]) -> tuple[CoreDump, ...]:
    """Look at the dumps that the given ranks left in a folder, the oldest first.

    Args:
        folder: Where dumps were sent.
        run_folder: Paths in the records are relative to it.
        ranks: Told by the process ids in the file names, and where two hosts use one, by the host.
    """
    found = [(path, _owner(path.name, ranks)) for path in folder.glob(f"{FILE_PREFIX}.*")]
    owned = [(path, rank) for path, rank in found if rank is not None]
    owned.sort(key=lambda pair: pair[0].stat().st_mtime)
    return tuple(
        replace(inspect(path, run_folder), global_rank=rank) for path, rank in owned[:MOST_DUMPS]
    )


def _owner(name: str, ranks: Sequence[RankOutcome]) -> int | None:
    """Return the rank that a dump is of, None for one of another process."""
    pid = _pid(name)
    owners = [rank for rank in ranks if rank.pid == pid] if pid else []
    if len(owners) > 1:
        host = ".".join(name.split(".")[1:-2])
        owners = [rank for rank in owners if rank.host.partition("#")[0] == host]
    return owners[0].global_rank if owners else None


def _pid(name: str) -> int:
    """Process id in ``cuda.<host>.<pid>.<time>``, host names with dots included; 0 without one."""
    parts = name.split(".")
    return int(parts[-2]) if len(parts) >= 4 and re.fullmatch("[0-9]{1,9}", parts[-2]) else 0
