"""The gates' own processes: ``python -m launch.gates.probes NAME [ARGUMENT...]``.

Each prints what it found on its last line and returns 0 (holds), 1 (does not) or 5 (something that
it needs is missing, and the line says what).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.record.verdict import ExitCode

PASSED, FAILED, MISSING = ExitCode.OK, ExitCode.CHECK_FAILED, ExitCode.NOTHING_RAN
_CANARY_S = 120.0


def fork(device: str) -> int:
    """Whether a forked child is fit for the device."""
    from harness.runtime.spawner import Spawner

    if device == "cuda" and not _gpus():
        return _missing("usable GPU")
    facts = Spawner(cuda=device == "cuda").prepare()
    if facts.problem is not None:
        return _say(FAILED, f"the preload failed: {facts.problem.splitlines()[-1]}")
    reason = f", because {facts.reason}" if facts.reason else ""
    return _say(PASSED, f"rank processes start by {facts.start_method}{reason}")


def context() -> int:
    """Whether every device takes work and gives its memory back."""
    count = _gpus()
    if not count:
        return _missing("usable GPU")
    import torch

    names = []
    for index in range(count):
        torch.cuda.set_device(index)
        a = torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)
        if float((a @ a)[0, 0]) != 512.0:
            return _say(FAILED, f"device {index} multiplies wrongly")
        free, total = torch.cuda.mem_get_info()
        names.append(f"{torch.cuda.get_device_name()} {free >> 30} of {total >> 30} GiB free")
    return _say(PASSED, "; ".join(names))


def canary(backend: str, *sizes: str) -> int:
    """Whether a small collective over each group size gives the right number."""
    count = _gpus()
    if backend == "nccl" and not count:
        return _missing("usable GPU")
    done, left = [], []
    for size in map(int, sizes):
        if backend == "nccl" and size > count:
            left.append(size)
            continue
        if not _collective(backend, size, device="cuda" if count else "cpu"):
            return _say(FAILED, f"{backend} over {size} ranks gives no right sum")
        done.append(size)
    more = f"; not {', '.join(map(str, left))}: {count} GPU(s)" if left else ""
    return _say(PASSED, f"{backend} over {', '.join(map(str, done))} rank(s){more}")


def _collective(backend: str, size: int, *, device: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        words = [sys.executable, "-m", "launch.gates.probes", "rank", backend, device, store]
        ranks = [
            subprocess.Popen([*words, str(size), str(rank)], stdout=subprocess.DEVNULL)
            for rank in range(size)
        ]
        try:
            return all(process.wait(timeout=_CANARY_S) == 0 for process in ranks)
        except subprocess.TimeoutExpired:
            return False
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def rank(backend: str, device: str, store: str, size: str, number: str) -> int:
    """One rank of a canary collective."""
    from harness.runtime.death import die_with_parent

    die_with_parent()
    import torch
    import torch.distributed as dist

    place = "cpu"
    if device == "cuda":
        index = int(number) if backend == "nccl" else 0
        torch.cuda.set_device(index)
        place = f"cuda:{index}"
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=int(number), world_size=int(size)
    )
    value = torch.full((1,), float(number) + 1, device=place)
    dist.all_reduce(value)
    total = float(value)  # waits for the device, which the end of the group need not
    dist.destroy_process_group()
    due = int(size) * (int(size) + 1) / 2
    return int(PASSED if total == due else FAILED)


def kernels(*patterns: str) -> int:
    """Whether some certificate cases agree on this device."""
    return _certify(patterns)


def flash_mla(*patterns: str) -> int:
    """Whether FlashMLA agrees with its model, or is not installed."""
    from harness.kernels.detect import installed_kernels

    if _gpus() and installed_kernels().flash_mla is None:
        return _missing("flash_mla: level attention is then not_run without --allow-mixed")
    return _certify(patterns)


def _certify(patterns: tuple[str, ...]) -> int:
    if not _gpus():
        return _missing("usable GPU")
    words = [sys.executable, "-m", "launch.cli", "certify"]
    for pattern in patterns:
        words += ["--only", pattern]
    return subprocess.run(words, check=False).returncode


def graph() -> int:
    """Whether a captured matrix product can be replayed with other numbers."""
    if not _gpus():
        return _missing("usable GPU")
    import torch

    from harness.production.graphs import CudaGraphs

    given = torch.ones(64, 64, device="cuda")
    result, replay = CudaGraphs().capture(lambda: given @ given)
    given.fill_(2.0)
    replay()
    torch.cuda.synchronize()
    if float(result[0, 0]) != 256.0:
        return _say(FAILED, f"a replay gives {float(result[0, 0])}, due is 256")
    return _say(PASSED, "a capture replays with new numbers")


def _gpus() -> int:
    from harness.runtime.devices import num_gpus

    if not num_gpus():
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _say(code: ExitCode, text: str) -> int:
    print(text)  # noqa: T201 (the gate's last line is its finding)
    return int(code)


def _missing(what: str) -> int:
    return _say(MISSING, f"missing {what}")


PROBES: dict[str, Callable[..., int]] = {
    "fork": fork,
    "context": context,
    "canary": canary,
    "rank": rank,
    "kernels": kernels,
    "flash_mla": flash_mla,
    "graph": graph,
}


if __name__ == "__main__":
    sys.exit(PROBES[sys.argv[1]](*sys.argv[2:]))
