"""Overlay ``causal_offsets``: pass the offset that the released caller forgets.

megatron-core 0.19.2 crops each zigzag chunk's keys to the last visible one and counts on a
bottom-right causal mask. From cudnn-frontend 1.26 the mask is top-left, shifted by an optional
``q_causal_offsets`` (https://github.com/NVIDIA/cudnn-frontend/pull/316), which the caller does not
pass. The offset due to a segment follows from its lengths alone: ``k_length * ratio - q_length``.

In a training job, before the first step::

    from harness.overlays import causal_offsets
    undo = causal_offsets.install()
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.overlays.patching import Patches, found, installed_by, module_of
from harness.overlays.refusal import OverlayRefusedError

NAME = "causal_offsets"
_CALLER = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
_FORWARD = "indexer_forward_wrapper"


class CausalOffsets:
    """The overlay as the harness's table holds it."""

    provides: Mapping[str, bool] = types.MappingProxyType({"passes_causal_offsets": True})

    def check(self, facts: Mapping[str, object]) -> None:
        """Refuse builds that pass offsets already, and kernels that take none.

        Args:
            facts: Probed facts ``passes_causal_offsets`` and ``accepts_causal_offsets``.

        Raises:
            OverlayRefusedError: when the overlay does not fit.
        """
        if facts.get("passes_causal_offsets"):
            raise OverlayRefusedError(
                "overlay causal_offsets: this Megatron passes q_causal_offsets itself; remove the "
                "overlay from the scenario"
            )
        if facts.get("accepts_causal_offsets") is False:
            raise OverlayRefusedError(
                "overlay causal_offsets: the forward wrapper takes no q_causal_offsets (its masks "
                "are bottom-right, as the caller expects); use cudnn-frontend 1.26 or later, or "
                "remove the overlay"
            )

    def wrap(self, namespace: Any) -> Any:
        """Return a namespace whose forward wrapper is given the offsets due."""
        return _Corrected(namespace)

    def install(self) -> Callable[[], None]:
        """Leave the build as it is: the correction stands before the kernels, see ``wrap``."""
        return lambda: None


class _Corrected:
    """Passes every attribute through but the forward wrapper."""

    def __init__(self, namespace: Any) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._namespace, name)
        return with_offsets(target) if name == _FORWARD else target


def with_offsets(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an ``indexer_forward_wrapper`` so that calls without offsets get the ones due.

    Raises:
        OverlayRefusedError: when the wrapper takes no ``q_causal_offsets``.
    """
    signature = inspect.signature(forward)
    if "q_causal_offsets" not in signature.parameters:
        CausalOffsets().check({"accepts_causal_offsets": False})

    @functools.wraps(forward)
    def corrected(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        if arguments.get("q_causal_offsets") is None:
            kwargs["q_causal_offsets"] = due_offsets(arguments)
        return forward(*args, **kwargs)

    return corrected


def due_offsets(arguments: Mapping[str, Any]) -> torch.Tensor:
    """Offsets that make a top-left mask equal the bottom-right one the caller counts on.

    Args:
        arguments: Bound arguments of the forward wrapper: ``q`` (B, Sq, H, D) and ``k``
            (B, Sk, 1, D), or THD tensors with ``cu_seqlens_q`` and ``cu_seqlens_k``.

    Returns:
        int32 ``[B]`` (one per batch entry or segment) on the device of ``q``.
    """
    ratio = int(arguments.get("ratio", 1))
    cu_seqlens_q, cu_seqlens_k = arguments.get("cu_seqlens_q"), arguments.get("cu_seqlens_k")
    q, k = arguments["q"], arguments["k"]
    if cu_seqlens_q is None or cu_seqlens_k is None:
        offset = k.shape[1] * ratio - q.shape[1]
        return torch.full((q.shape[0],), offset, dtype=torch.int32, device=q.device)
    q_lengths = cu_seqlens_q[1:] - cu_seqlens_q[:-1]
    k_lengths = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
    return (k_lengths * ratio - q_lengths).to(dtype=torch.int32, device=q.device)


def install() -> Callable[[], None]:
    """Correct the installed Megatron in this process.

    Returns:
        A function that takes the correction out again.

    Raises:
        OverlayRefusedError: when the build passes offsets itself, the kernel takes none, either of
            them is missing, or the overlay is on already.
    """
    return installed_by(_install, NAME)


def _install(patches: Patches) -> None:
    caller = module_of(NAME, _CALLER)
    if "q_causal_offsets" in inspect.getsource(caller):
        CausalOffsets().check({"passes_causal_offsets": True})
    found(NAME, _CALLER, "_ensure_dsa_namespace")
    before = caller._cudnn_dsa
    try:
        caller._ensure_dsa_namespace()
        kernels = caller._cudnn_dsa
        forward = getattr(kernels, _FORWARD)
    except ImportError as error:
        raise OverlayRefusedError(
            f"overlay {NAME}: expected the cuDNN kernels, found none ({error}); install "
            "nvidia-cudnn-frontend, or remove the overlay"
        ) from error
    finally:
        # Megatron imports them at the first call; without the overlay it shall do so again.
        caller._cudnn_dsa = before
    # Refuse now, not inside the first training step.
    with_offsets(forward)
    patches.put(caller, "_cudnn_dsa", CausalOffsets().wrap(kernels))
