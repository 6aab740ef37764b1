"""Collects the environment fingerprint of a run with the standard library and package metadata."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping

from harness.production.locate import MegatronBuild
from harness.record.environment import Environment, GpuFacts

_KEPT_PREFIXES = (
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "GLOO_",
    "MKL_",
    "NCCL_",
    "NVTE_",
    "OMP_",
    "PYTORCH_",
    "SLURM_",
    "TORCH",
)
_SECRET = re.compile(r"KEY|TOKEN|API|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
MASK = "***"


def collect(build: MegatronBuild | None = None) -> Environment:
    """Collect what can be known without importing torch.

    Args:
        build: The Megatron build under test, when one was found.
    """
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        host=socket.gethostname(),
        num_cpus=len(os.sched_getaffinity(0)),
        torch=_version("torch"),
        cuda=_version("cuda-toolkit"),
        cudnn=_version("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        nccl=_version("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
        driver=_driver(),
        megatron_core=build.version if build is not None else _version("megatron-core"),
        megatron_path=str(build.package) if build is not None else None,
        megatron_commit=build.commit if build is not None else None,
        megatron_dirty=build.dirty if build is not None else None,
        cudnn_frontend=_version("nvidia-cudnn-frontend"),
        cute_dsl=_version("nvidia-cutlass-dsl"),
        flash_mla=_version("flash-mla", "flash_mla"),
        transformer_engine=_version("transformer-engine"),
        tilelang=_version("tilelang"),
        fast_hadamard_transform=_version("fast-hadamard-transform"),
        gpus=_gpus(),
        image=os.environ.get("DSA_HARNESS_IMAGE") or os.environ.get("SLURM_CONTAINER_IMAGE"),
        variables=kept_variables(os.environ),
    )


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change results, secrets masked by name and by URL form."""
    kept = {}
    for name in sorted(environ):
        if not name.startswith(_KEPT_PREFIXES):
            continue
        value = environ[name]
        kept[name] = MASK if _SECRET.search(name) else _URL_CREDENTIALS.sub(f"{MASK}@", value)
    return kept


def _version(*names: str) -> str | None:
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _driver() -> str | None:
    try:
        with open("/sys/module/nvidia/version", encoding="ascii") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _gpus() -> tuple[GpuFacts, ...]:
    """Ask the driver's own library; an absent driver means no GPUs, not an error."""
    if _driver() is None:
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(f"warning: NVIDIA driver present but NVML failed: {error}", file=sys.stderr)  # noqa: T201
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_gpu(pynvml, handle) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml, handle) -> GpuFacts:  # type: ignore[no-untyped-def]
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuFacts(
        name=str(pynvml.nvmlDeviceGetName(handle)),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        capability=f"{major}.{minor}",
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )
