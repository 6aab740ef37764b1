"""Checks of one machine. Nothing here imports torch in this process: it is tried in others."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.record.environment import Environment
from harness.runtime.fingerprint import collect
from launch.health.check import Check, Health

_PROBE_S = 120.0


def node_checks(out: Path) -> Iterator[Check]:
    """Look at this machine, one check after the other.

    Args:
        out: Folder that runs shall be written to.
    """
    environment = collect()
    yield _python()
    yield _needed("torch", environment.torch, "pip install torch (the CUDA build)")
    yield _needed("megatron-core", environment.megatron_core, "pip install 'megatron-core>=0.19.2'")
    yield _needed(
        "nvidia-cudnn-frontend", environment.cudnn_frontend, "pip install nvidia-cudnn-frontend"
    )
    yield _gpus(environment)
    yield _driver(environment)
    yield _fork()
    yield _flash_mla()
    yield _optional("transformer-engine", environment.transformer_engine, "layers are built local")
    yield _optional("tilelang", environment.tilelang, "its scenarios are not_run")
    yield _ptrace()
    yield _tool("compute-sanitizer", "--sanitizer", "pip install nvidia-cuda-sanitizer-api")
    yield _tool("cuda-gdb", "reading CUDA core dumps", "install the CUDA toolkit")
    yield _tool("py-spy", "native frames of a hang", "pip install py-spy")
    yield _writable(out)


def _python() -> Check:
    good = sys.version_info >= (3, 12)
    return Check(
        name="Python",
        health=Health.GOOD if good else Health.BAD,
        found=platform.python_version(),
        advice="use Python 3.12 or newer",
    )


def _needed(name: str, version: str | None, advice: str) -> Check:
    health = Health.BAD if version is None else Health.GOOD
    return Check(name=name, health=health, found=version or "not installed", advice=advice)


def _optional(name: str, version: str | None, without: str) -> Check:
    if version is not None:
        return Check(name=name, health=Health.GOOD, found=version)
    return Check(name=name, health=Health.ABSENT, found="not installed", advice=without)


def _gpus(environment: Environment) -> Check:
    names = [f"{gpu.name} ({gpu.capability})" for gpu in environment.gpus]
    if names:
        return Check(name="GPUs", health=Health.GOOD, found=f"{len(names)}: {', '.join(names)}")
    return Check(
        name="GPUs",
        health=Health.ABSENT,
        found="none",
        advice="kernels are modelled here, and records say so",
    )


def _driver(environment: Environment) -> Check:
    if environment.driver is not None:
        return Check(name="NVIDIA driver", health=Health.GOOD, found=environment.driver)
    return Check(name="NVIDIA driver", health=Health.ABSENT, found="not found")


_FORK_PROBE = """
import json
from harness.runtime.spawner import Spawner, SpawnerError
try:
    facts = Spawner(cuda=True).prepare()
    print(json.dumps({"method": facts.start_method, "reason": facts.reason}))
except SpawnerError as error:
    print(json.dumps({"error": str(error)}))
"""


def _fork() -> Check:
    """Fork a child of a server that holds torch, as CUDA ranks are started."""
    name = "fork probe"
    done = _python_process(_FORK_PROBE)
    if isinstance(done, str):
        return Check(name=name, health=Health.BAD, found=done, advice="see the messages of torch")
    if "error" in done:
        return Check(name=name, health=Health.BAD, found=done["error"], advice="repair torch")
    if done["method"] == "forkserver":
        return Check(
            name=name,
            health=Health.GOOD,
            found="importing torch leaves CUDA untouched, so ranks can be forked",
        )
    return Check(
        name=name,
        health=Health.ABSENT,
        found=done["reason"],
        advice="ranks are spawned instead, which takes seconds more for each scenario",
    )


def _python_process(code: str) -> dict[str, str] | str:
    """Run code elsewhere and return what it printed as JSON, or why it did not."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_S,
            check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROBE_S:.0f} s"
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"failed with exit code {done.returncode}: {last[0]}"
    return answer if isinstance(answer, dict) else "answered with no mapping"


def _flash_mla() -> Check:
    """FlashMLA has no release: its commit stands in its version, or nowhere."""
    name = "FlashMLA"
    if importlib.util.find_spec("flash_mla") is None:
        return Check(
            name=name,
            health=Health.ABSENT,
            found="not installed",
            advice="with a GPU, fused sparse attention is not_run without it (or --allow-mixed)",
        )
    for package in ("flash-mla", "flash_mla"):
        try:
            return Check(name=name, health=Health.GOOD, found=importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check(name=name, health=Health.GOOD, found="installed, of unknown version")


def _ptrace() -> Check:
    """py-spy reads other processes: same user, and Yama or a capability that permits it."""
    name = "ptrace"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    value = scope.read_text().strip() if scope.exists() else "0"
    capable = _has_capability(19)
    if value in ("0", "1") or capable:
        # With 1 a rank permits it itself, by prctl.
        return Check(name=name, health=Health.GOOD, found=f"permitted (ptrace_scope {value})")
    return Check(
        name=name,
        health=Health.ABSENT,
        found=f"not permitted (ptrace_scope {value})",
        advice="hangs are reported with Python frames only",
    )


def _has_capability(bit: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def _tool(command: str, use: str, advice: str) -> Check:
    path = shutil.which(command)
    if path is not None:
        return Check(name=command, health=Health.GOOD, found=path)
    return Check(
        name=command, health=Health.ABSENT, found="not on PATH", advice=f"for {use}: {advice}"
    )


def _writable(out: Path) -> Check:
    from harness.runtime.run_folder import RunFolderError, check_writable

    name = "run folder"
    try:
        check_writable(out)
    except RunFolderError as error:
        return Check(name=name, health=Health.BAD, found=str(error))
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    health = Health.GOOD if free > 2**30 else Health.BAD
    return Check(
        name=name,
        health=health,
        found=f"{out} can be written, {free / 2**30:.1f} GiB free",
        advice="make room: journals and stacks of a large run take some 100 MiB",
    )


def environment_variables() -> dict[str, str]:
    """Return the variables of this process that change results, secrets masked."""
    from harness.runtime.fingerprint import kept_variables

    return kept_variables(os.environ)
