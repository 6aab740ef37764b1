"""Objects that stand in for ``cudnn.DSA`` and for ``flash_mla.flash_mla_sparse_fwd``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from harness.kernels import flash_mla
from harness.kernels.candidates import candidate_size, candidate_size_thd
from harness.kernels.context import CallRecord, KernelContext
from harness.kernels.defects import Defects, resolve_defects
from harness.kernels.dense_indexer_backward import dense_indexer_backward
from harness.kernels.dense_score_recompute import (
    dense_attention_recompute,
    dense_indexer_recompute,
)
from harness.kernels.index_layout import compactify, local_to_global
from harness.kernels.indexer_backward import indexer_backward
from harness.kernels.indexer_forward import indexer_forward
from harness.kernels.indexer_forward_top_k import indexer_forward_top_k
from harness.kernels.indexer_top_k import indexer_top_k
from harness.kernels.other_device import check_devices
from harness.kernels.releases import ARCHES, Arch, Release, release_table
from harness.kernels.signatures import Signature
from harness.kernels.sparse_attention_backward import sparse_attention_backward
from harness.kernels.sparse_score_recompute import (
    sparse_attention_recompute,
    sparse_indexer_recompute,
)
from harness.kernels.wrapping import PLAIN_HOOK, TensorHook
from harness.record.evidence import AddressFaultEvidence

OnCall = Callable[[CallRecord], None]
Operation = Callable[[KernelContext, Mapping[str, Any]], Any]

OPERATIONS: dict[str, Operation] = {
    "indexer_forward_wrapper": indexer_forward,
    "indexer_top_k_wrapper": indexer_top_k,
    "indexer_forward_top_k_wrapper": indexer_forward_top_k,
    "compress_topk_cand_buffer_size": candidate_size,
    "compress_topk_cand_buffer_size_thd": candidate_size_thd,
    "indexer_backward_wrapper": indexer_backward,
    "dense_indexer_backward_wrapper": dense_indexer_backward,
    "dense_attn_score_recompute_wrapper": dense_attention_recompute,
    "dense_indexer_score_recompute_wrapper": dense_indexer_recompute,
    "sparse_attn_score_recompute_wrapper": sparse_attention_recompute,
    "sparse_indexer_score_recompute_wrapper": sparse_indexer_recompute,
    "sparse_attention_backward_wrapper": sparse_attention_backward,
    "local_to_global_wrapper": local_to_global,
    "compactify_wrapper": compactify,
}
"""Wrapper name to model. A wrapper exists in a release when the release has a signature for it."""


class ModelledWrapper:
    """One callable: binds arguments as the release's function does, runs the model, reports.

    ``inspect.signature`` answers as it does for the release's own function.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        model: Callable[[Mapping[str, Any]], Any],
        *,
        where: str,
        on_call: OnCall | None = None,
    ) -> None:
        """Keep the parts; nothing runs yet. ``where`` names release and architecture."""
        self.__name__ = name
        self.__qualname__ = name
        self.__signature__ = signature
        self._model = model
        self._where = where
        self._on_call = on_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Raises:
            TypeError: The arguments do not fit the release's signature.
            ValueError: The tensors are on several devices.
        """
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}() of {self._where}: {error}") from None
        bound.apply_defaults()
        check_devices(self.__name__, bound.arguments)
        started = time.perf_counter()
        result, failure = None, None
        try:
            with torch.no_grad():
                result = self._model(bound.arguments)
        except BaseException as error:
            failure = error
            raise
        finally:
            if self._on_call is not None:
                self._on_call(
                    CallRecord(
                        name=self.__name__,
                        arguments=bound.arguments,
                        result=result,
                        error=failure,
                        seconds=time.perf_counter() - started,
                    )
                )
        return result

    def __repr__(self) -> str:
        return f"<modelled {self.__name__} of {self._where}>"


class ModelledNamespace:
    """Stand-in for ``cudnn.DSA`` of one release on one architecture.

    Wrappers are attributes; what the release does not have raises ``AttributeError``.

    Attributes:
        findings: Silent out-of-row accesses of all calls so far.
        release: Table row.
        arch: Architecture.
        defects: Names switched on.
    """

    def __init__(self, context: KernelContext, on_call: OnCall | None = None) -> None:
        """Build the wrappers that the release has."""
        self.release: Release = context.release
        self.arch: Arch = context.arch
        self.defects: frozenset[str] = context.defects
        self.findings: list[AddressFaultEvidence] = context.findings
        self._wrappers = {
            name: ModelledWrapper(
                name,
                signature,
                partial(OPERATIONS[name], context),
                where=f"{context.release.version} on {context.arch}",
                on_call=on_call,
            )
            for name, signature in context.release.signatures.items()
            if name in OPERATIONS
        }

    def __getattr__(self, name: str) -> ModelledWrapper:
        wrappers = self.__dict__.get("_wrappers", {})
        if name in wrappers:
            return wrappers[name]
        raise AttributeError(f"DSA has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._wrappers]

    @property
    def accepts_causal_offsets(self) -> bool:
        """Whether forward takes ``q_causal_offsets``."""
        return self.release.accepts_causal_offsets

    @property
    def mask_alignment(self) -> str:
        """``bottom_right`` or ``top_left``."""
        return str(self.release.mask_alignment)


def modelled_namespace(
    cudnn_frontend: str = "1.32.0",
    arch: Arch = "sm100",
    defects: Defects = "as_released",
    seed: int = 0,
    on_call: OnCall | None = None,
    hook: TensorHook = PLAIN_HOOK,
) -> ModelledNamespace:
    """Build the stand-in for ``cudnn.DSA``.

    Args:
        cudnn_frontend: Release, such as ``1.26.0``.
        arch: ``sm90`` or ``sm100``.
        defects: ``as_released``, ``none``, or names of ``harness.kernels.defects.DEFECTS``.
        seed: Fixes pick order, tie choices and races over the whole sequence of calls.
        on_call: Called after each wrapper call, returned or raised.
        hook: How to unwrap the caller's tensors and wrap results like them.

    Raises:
        ValueError: Release, architecture or defect name is unknown.
    """
    release = release_table(cudnn_frontend)
    _check_arch(arch)
    context = KernelContext(
        release=release,
        arch=arch,
        defects=resolve_defects(defects, release.defects[arch]),
        generator=torch.Generator().manual_seed(seed),
        hook=hook,
    )
    return ModelledNamespace(context, on_call)


def modelled_flash_mla(
    arch: Arch = "sm100",
    seed: int = 0,
    on_call: OnCall | None = None,
    hook: TensorHook = PLAIN_HOOK,
    findings: list[AddressFaultEvidence] | None = None,
) -> ModelledWrapper:
    """Build the stand-in for ``flash_mla.flash_mla_sparse_fwd``.

    Args:
        arch: ``sm90`` or ``sm100``; decides the head rule.
        seed: For symmetry with ``modelled_namespace``; the model leaves nothing to chance.
        on_call: Called after each call.
        hook: How to unwrap the caller's tensors and wrap results like them.
        findings: List to append silent out-of-row accesses to, such as a namespace's.
    """
    _check_arch(arch)
    context = flash_mla.FlashMlaContext(
        arch=arch, hook=hook, findings=[] if findings is None else findings
    )
    return ModelledWrapper(
        flash_mla.NAME,
        flash_mla.SIGNATURE,
        partial(flash_mla.flash_mla_sparse_fwd, context),
        where=f"FlashMLA on {arch}",
        on_call=on_call,
    )


def _check_arch(arch: str) -> None:
    if arch not in ARCHES:
        raise ValueError(f"arch is {arch!r}; expected one of {ARCHES}")
