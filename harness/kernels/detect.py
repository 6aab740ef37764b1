"""What is installed, and what it says of itself: facts first, version strings beside them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
from dataclasses import dataclass
from typing import Any

from harness.kernels.releases import MaskAlignment

FRONTEND_PACKAGE = "nvidia-cudnn-frontend"
_FORWARD = "indexer_forward_wrapper"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledKernels:
    """Packages by their metadata; nothing is imported.

    Attributes:
        cudnn_frontend: Version of nvidia-cudnn-frontend, None when not installed.
        flash_mla: Version of FlashMLA; ``unknown`` when it imports without metadata; None when it
            is not there.
    """

    cudnn_frontend: str | None
    flash_mla: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFacts:
    """What a ``cudnn.DSA`` object, real or modelled, says of itself.

    Attributes:
        accepts_causal_offsets: Forward has a ``q_causal_offsets`` parameter; None when forward
            cannot be looked at.
        mask_alignment: ``top_left`` where offsets are accepted (both came in the same release),
            else ``bottom_right``; None when unknown.
        reason: Why something is unknown.
    """

    accepts_causal_offsets: bool | None
    mask_alignment: str | None
    reason: str | None = None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_kernels() -> InstalledKernels:
    """Look the packages up; costs milliseconds."""
    flash_mla = _version("flash_mla")
    if flash_mla is None and importlib.util.find_spec("flash_mla") is not None:
        flash_mla = "unknown"
    return InstalledKernels(cudnn_frontend=_version(FRONTEND_PACKAGE), flash_mla=flash_mla)


def namespace_facts(namespace: Any) -> KernelFacts:
    """Read the facts off a ``cudnn.DSA`` object.

    The real one imports its kernels on first attribute access (about 4 s).

    Args:
        namespace: ``cudnn.DSA`` or a ``ModelledNamespace``.
    """
    try:
        parameters = inspect.signature(getattr(namespace, _FORWARD)).parameters
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return _unknown(f"{_FORWARD} cannot be looked at: {type(error).__name__}: {error}")
    accepts = "q_causal_offsets" in parameters
    alignment = MaskAlignment.TOP_LEFT if accepts else MaskAlignment.BOTTOM_RIGHT
    return KernelFacts(accepts_causal_offsets=accepts, mask_alignment=str(alignment))


def _unknown(reason: str) -> KernelFacts:
    return KernelFacts(accepts_causal_offsets=None, mask_alignment=None, reason=reason)


def installed_facts() -> KernelFacts:
    """Import the installed frontend's wrappers and read their facts (about 4 s, once)."""
    try:
        from cudnn import DSA
    except ImportError as error:
        return _unknown(f"cudnn does not import: {error}")
    return namespace_facts(DSA)
