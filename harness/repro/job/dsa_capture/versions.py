"""Which software and which device a job runs on, from metadata and files alone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import torch

_PACKAGES = {
    "cudnn_frontend": ("nvidia-cudnn-frontend",),
    "cute_dsl": ("nvidia-cutlass-dsl",),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "flash_mla": ("flash-mla", "flash_mla"),
    "transformer_engine": ("transformer-engine",),
    "tilelang": ("tilelang",),
    "triton": ("triton",),
}

_PLACE = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
)
"""The only variables of the environment that are recorded; none can hold a secret."""


def version_facts() -> dict[str, Any]:
    """Return versions of what is installed and loaded; None stands for what is not there."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    for name, packages in _PACKAGES.items():
        facts[name] = _version(packages)
    return facts | _megatron()


def process_facts() -> dict[str, Any]:
    """Return who this process is."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "environment": {name: os.environ[name] for name in _PLACE if name in os.environ},
    }


def device_facts() -> dict[str, Any] | None:
    """Return the current GPU; None without one, or before the job has set it up itself."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory_bytes": found.total_memory,
    }


def global_rank() -> int:
    """Return the rank of this process in the job."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    for name in ("RANK", "SLURM_PROCID"):
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def _version(packages: tuple[str, ...]) -> str | None:
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def _megatron() -> dict[str, Any]:
    core = sys.modules.get("megatron.core")
    place = getattr(core, "__file__", None)
    facts: dict[str, Any] = {
        "megatron_core": _megatron_version(core, place),
        "megatron_path": None if place is None else str(Path(place).parents[1]),
        "megatron_commit": None,
    }
    if place is not None:
        with contextlib.suppress(OSError, IndexError):
            facts["megatron_commit"] = _commit(Path(place).parents[2])
    return facts


def _megatron_version(core: Any, place: str | None) -> str | None:
    """Return a version without the commit of another repository.

    Megatron appends the commit of whatever repository surrounds its folder, such as that of the job
    whose environment it is installed in.
    """
    told: str | None = getattr(core, "__version__", None)
    if told is None:
        return _version(("megatron-core",))
    if place is None:
        return told
    with contextlib.suppress(OSError, IndexError):
        if (Path(place).parents[2] / ".git").exists():
            return told
    return _version_of_file(place) or told.partition("+")[0]


def _version_of_file(place: str) -> str | None:
    """Return the version of the installed megatron-core where that is the one imported."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
        found = importlib.metadata.distribution("megatron-core")
        listed = Path(str(found.locate_file("megatron/core/__init__.py")))
        return found.version if listed.resolve() == Path(place).resolve() else None
    return None


def _commit(checkout: Path) -> str | None:
    """Read the commit of a git checkout; None where the folder is none."""
    git = checkout / ".git"
    if not git.is_dir():
        return None
    head = (git / "HEAD").read_text(encoding="ascii", errors="replace").strip()
    if not head.startswith("ref: "):
        return head[:40]
    name = head.removeprefix("ref: ")
    loose = git / name
    if loose.is_file():
        return loose.read_text(encoding="ascii", errors="replace").strip()[:40]
    for line in (git / "packed-refs").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.endswith(f" {name}"):
            return line.split()[0][:40]
    return None
