"""Full fp32 precision for the reference, whatever the process has switched on for production."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Switch TF32, bf16 matmul and reduced-precision reductions off, and restore them on exit.

    The switches are process-wide, so no other thread should run production matmuls meanwhile. The
    CPU has one too: ``set_float32_matmul_precision("medium")`` lets oneDNN multiply in bf16.
    """
    cuda = torch.backends.cuda.matmul
    mkldnn = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set at run time
    reductions = (
        cuda.allow_bf16_reduced_precision_reduction,
        cuda.allow_fp16_reduced_precision_reduction,
    )
    backends = (cuda.fp32_precision, mkldnn.fp32_precision)
    try:
        legacy: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:
        # Torch refuses to answer when backend settings contradict the process-wide one; the
        # backend settings alone then hold the truth.
        legacy = None
    torch.set_float32_matmul_precision("highest")
    cuda.allow_bf16_reduced_precision_reduction = False
    cuda.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        for backend, saved in zip((cuda, mkldnn), backends, strict=True):
            if backend.fp32_precision != saved:
                backend.fp32_precision = saved
        cuda.allow_bf16_reduced_precision_reduction = reductions[0]
        cuda.allow_fp16_reduced_precision_reduction = reductions[1]
