"""CUDA errors: their codes out of exceptions, what a code means, and looking for them in time.

Kernels run behind the back of the code that starts them, so their errors surface at some later
call. A probe at each phase boundary waits for the device, so that an error is found in the phase
that caused it. Names and texts are those of the CUDA runtime API (``cudaError``).

Torch is not imported: the probe is handed ``torch.cuda``.
"""

from __future__ import annotations

import re
from typing import Protocol

from harness.record.phase import Phase

_TEXTS = {
    "out of memory": 2,
    "uncorrectable ecc error encountered": 214,
    "uncorrectable nvlink error detected during the execution": 220,
    "an illegal memory access was encountered": 700,
    "too many resources requested for launch": 701,
    "the launch timed out and was terminated": 702,
    "device-side assert triggered": 710,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "operation not supported on global/shared address space": 717,
    "invalid program counter": 718,
    "unspecified launch failure": 719,
}
"""Texts of ``cudaGetErrorString`` to codes, for exceptions that carry no code."""

OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""
MEMORY_ERRORS = frozenset({700, 714, 715, 716, 717, 718, 719})
"""cudaErrorIllegalAddress and the errors that a wild access may be reported as in its place."""
STICKY_ERRORS = MEMORY_ERRORS | {702, 710}
"""Errors after which the context of the process is lost: also time-outs and device asserts."""
HARDWARE_ERRORS = frozenset({214, 220})
"""Uncorrectable ECC and NVLink errors: the machine's fault, not a kernel's."""

_MESSAGE = re.compile(r"CUDA error: (?P<text>[^\n]+)")


def cuda_error_code(error: BaseException) -> int | None:
    """Return the CUDA error code behind an exception, None where there is none.

    ``torch.AcceleratorError`` has it as ``error_code``; older releases and some paths raise a plain
    RuntimeError whose first line holds CUDA's own text. An exception raised while another one was
    handled, or because of it, is searched together with that one.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        code = _code_attribute(current)
        if code is not None:
            return code
        if isinstance(current, RuntimeError):
            code = _code_of_text(str(current))
            if code is not None:
                return code
        current = current.__cause__ or current.__context__
    return None


def _code_attribute(error: BaseException) -> int | None:
    # By name, since old releases of torch lack the class; other libraries' codes are not CUDA's.
    names = {kind.__name__ for kind in type(error).__mro__}
    if "AcceleratorError" not in names and type(error) is not RuntimeError:
        return None
    code = getattr(error, "error_code", None)
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def _code_of_text(text: str) -> int | None:
    match = _MESSAGE.match(text)
    return None if match is None else _TEXTS.get(match["text"].strip().rstrip(".").lower())


class Cuda(Protocol):
    """What the probe uses of ``torch.cuda``."""

    def is_initialized(self) -> bool:
        """Tell whether this process has a context."""

    def is_current_stream_capturing(self) -> bool:
        """Tell whether the current stream is being captured into a graph."""

    def synchronize(self) -> None:
        """Wait for the device; raises what went wrong on it."""


class ContextProbe:
    """Waits for the device whenever a phase ends, so that its errors are found in it.

    Append it to ``Journal.leaving``. It changes timing and may hide races: a scenario that it is
    used on should also run without it.
    """

    def __init__(self, cuda: Cuda) -> None:
        """Use ``torch.cuda``."""
        self._cuda = cuda
        self.num_waits = 0
        """How often it waited."""

    def __call__(self, phase: Phase) -> None:
        """Wait for what ``phase`` started.

        Raises:
            RuntimeError: the device's error, as torch raises it.
        """
        # During capture a synchronisation is an error of its own and spoils the capture.
        if not self._cuda.is_initialized() or self._cuda.is_current_stream_capturing():
            return
        self.num_waits += 1
        self._cuda.synchronize()
