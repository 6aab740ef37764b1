"""Exceptions as evidence: what was raised, and whose code raised it."""

from __future__ import annotations

import dis
import traceback
from types import FrameType, TracebackType

from harness.record.evidence import AddressFaultEvidence, ExceptionEvidence
from harness.runtime.cuda_errors import OUT_OF_MEMORY, cuda_error_code

BUILD_PACKAGES = (
    "megatron",
    "cudnn",
    "cutlass",
    "flash_mla",
    "transformer_engine",
    "tilelang",
    "triton",
)
"""Packages whose frames belong to the build under test."""

_TRANSPARENT = ("harness.runtime.collectives.",)
"""Wrappers of ours around what the build calls: their frames are nobody's."""

_CALLERS = (
    "harness.production.kernel_call.",
    "harness.production.scoring_call.",
)
"""Callers of ours that stand in for the build's: they call one part of it on its own."""

_RAISE = dis.opmap["RAISE_VARARGS"]
_COLLECTIVE_ERRORS = {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}


def exception_evidence(error: BaseException) -> ExceptionEvidence:
    """Describe an exception that ends a rank, with the address fault it carries, if any."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    fault = getattr(error, "evidence", None)
    code = cuda_error_code(error)
    origin = origin_of(error)
    return ExceptionEvidence(
        type=name,
        text=str(error),
        traceback="".join(traceback.format_exception(error)),
        origin=origin,
        declined=origin == "build" and _raised_on_purpose(error),
        in_collective=_in_collective(error),
        cuda_error=code,
        out_of_memory=code == OUT_OF_MEMORY or _out_of_memory(error),
        compile_failure=hasattr(error, "first_error") and hasattr(error, "kernel"),
        kernel_hang=name.endswith(".KernelHang"),
        address_fault=fault if isinstance(fault, AddressFaultEvidence) else None,
    )


def origin_of(error: BaseException) -> str:
    """Return ``injected``, ``build`` or ``harness`` by the innermost frame that is one of them.

    Frames of torch and the standard library are tools of whoever called them. A modelled kernel
    stands in for a kernel of the build: what it raises on purpose when Megatron calls it is the
    build's; an operation that fails inside the model is the model's own fault.
    """
    owners = [_owner(frame) for frame in _frames(error.__traceback__)]
    known = [owner for owner in owners if owner is not None]
    if not known:
        return "harness"
    if known[-1] == "model":
        called = "build" in known or _called_alone(error)
        on_purpose = called and _raised_on_purpose(error)
        return "build" if on_purpose else "harness"
    return known[-1]


def _called_alone(error: BaseException) -> bool:
    return any(_module(frame).startswith(_CALLERS) for frame in _frames(error.__traceback__))


def _frames(trace: TracebackType | None) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(trace)]


def _module(frame: FrameType) -> str:
    # Module names, not paths: a checkout may well live below a folder called megatron.
    return str(frame.f_globals.get("__name__", "")) + "."


def _owner(frame: FrameType) -> str | None:
    module = _module(frame)
    if module.startswith("harness.runtime.inject."):
        return "injected"
    if module.startswith(_TRANSPARENT):
        return None
    if module.startswith("harness.kernels."):
        return "model"
    if module.startswith("harness.overlays."):
        # An overlay is the build as it runs: what fails or refuses there, the build does.
        return "build"
    if module.startswith("harness."):
        return "harness"
    return "build" if module.partition(".")[0] in BUILD_PACKAGES else None


def _raised_on_purpose(error: BaseException) -> bool:
    """Tell whether the innermost frame, the build's or a model's, ran a raise or assert statement.

    The instruction decides: an operation that fails leaves another one at the same place.
    """
    innermost = error.__traceback__
    if innermost is None:
        return False
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    if _owner(innermost.tb_frame) not in ("build", "model"):
        return False
    return innermost.tb_frame.f_code.co_code[innermost.tb_lasti] == _RAISE


def _in_collective(error: BaseException) -> bool:
    if _COLLECTIVE_ERRORS & {kind.__name__ for kind in type(error).__mro__}:
        return True
    frames = _frames(error.__traceback__)
    if frames and _module(frames[-1]).startswith("torch.distributed."):
        return True
    # Waiting for an asynchronous gloo operation leaves no Python frame, and gloo has no class of
    # its own: its errors are RuntimeErrors that begin with the place in its sources.
    return type(error) is RuntimeError and "/gloo/" in str(error).partition("]")[0]


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}:
        return True
    # The CPU allocator of torch raises a plain RuntimeError that names itself.
    return type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)
