"""Kernel models against real kernels: the generated cases, and their comparison."""

from harness.kernels.certify.case import HANG, ILLEGAL_ADDRESS, KernelCase, Side, judged, run_case
from harness.kernels.certify.cases import kernel_cases

__all__ = ["HANG", "ILLEGAL_ADDRESS", "KernelCase", "Side", "judged", "kernel_cases", "run_case"]
