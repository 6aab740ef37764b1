"""Semantic models of the cuDNN DSA kernels and FlashMLA, release by release."""

from harness.kernels.addresses import AddressFault
from harness.kernels.context import CallRecord, KernelContext, NotModelledError
from harness.kernels.cuda_like import CudaLike, cuda_like
from harness.kernels.defects import DEFECTS, Defects
from harness.kernels.failures import CompileFailure, KernelHang
from harness.kernels.namespace import (
    ModelledNamespace,
    ModelledWrapper,
    modelled_flash_mla,
    modelled_namespace,
)
from harness.kernels.releases import ARCHES, RELEASES, Arch, MaskAlignment, Release, release_table
from harness.kernels.wrapping import TensorHook

__all__ = [
    "modelled_namespace",
    "modelled_flash_mla",
    "release_table",
    "RELEASES",
    "ARCHES",
    "DEFECTS",
    "AddressFault",
    "Arch",
    "CallRecord",
    "CompileFailure",
    "CudaLike",
    "Defects",
    "KernelContext",
    "KernelHang",
    "MaskAlignment",
    "ModelledNamespace",
    "ModelledWrapper",
    "NotModelledError",
    "Release",
    "TensorHook",
    "cuda_like",
]
