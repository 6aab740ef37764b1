"""Environment fingerprint of a run: the versions and devices a verdict depends on."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """One GPU as its driver describes it."""

    name: str
    uuid: str
    capability: str
    """Such as ``10.0``."""
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Software and hardware of a run; None means not installed or not found.

    Attributes:
        megatron_path: Folder the ``megatron`` package is imported from.
        megatron_commit: Commit of that folder when it is a git checkout.
        megatron_dirty: Whether that checkout has uncommitted changes.
        cute_dsl: nvidia-cutlass-dsl version.
        cudnn: cuDNN library version torch was built with or has loaded.
        image: Container image name where the site exports one.
        variables: Environment variables that change results, values masked where they may be
            secret.
    """

    python: str
    platform: str
    host: str
    num_cpus: int
    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    megatron_core: str | None = None
    megatron_path: str | None = None
    megatron_commit: str | None = None
    megatron_dirty: bool | None = None
    cudnn_frontend: str | None = None
    cute_dsl: str | None = None
    flash_mla: str | None = None
    transformer_engine: str | None = None
    tilelang: str | None = None
    fast_hadamard_transform: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    image: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
