"""Puts the kernels of a scenario behind Megatron's cuDNN caller, and says where they come from."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from harness.kernels import cuda_like, modelled_flash_mla, modelled_namespace, release_table
from harness.kernels.detect import installed_facts, installed_kernels
from harness.kernels.wrapping import PLAIN_HOOK, TensorHook
from harness.overlays import OVERLAYS
from harness.production.errors import CapabilityMissingError
from harness.production.hooks import ObservedNamespace, observed_kernel
from harness.production.recorder import Recorder
from harness.record.result import FactValue
from harness.scenario.spec import KernelsSpec

_CUDNN = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
_DISPATCH = "megatron.core.transformer.experimental_attention_variant.dsa_kernels"
_CAPABILITY = {"sm90": (9, 0), "sm100": (10, 0)}
_FLASH_MLA = "flash_mla_sparse_fwd"
_OPERATIONS = (
    "indexer_forward",
    "indexer_top_k",
    "indexer_forward_top_k",
    _FLASH_MLA,
    "sparse_attn_score_recompute",
    "dense_attn_score_recompute",
    "indexer_backward",
    "dense_indexer_backward",
    "sparse_attention_backward",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSource:
    """Where the kernels of a scenario come from.

    Attributes:
        modelled: True when models stand in for kernels.
        kernels: Operation to ``hardware``, ``modelled <release> <arch>`` or ``torch``.
        facts: Kernel facts for ``known`` rules.
        version: Effective cudnn-frontend release, None for backend ``none``.
        arch: Effective architecture, None where no kernel runs.
        flash_mla: Where sparse attention comes from on hardware; ``absent`` where the level needs
            none, ``modelled`` where a missing FlashMLA may be stood in for.
    """

    modelled: bool
    kernels: dict[str, str]
    facts: dict[str, FactValue] = field(default_factory=dict)
    version: str | None = None
    arch: str | None = None
    flash_mla: Literal["hardware", "modelled", "absent"] = "hardware"


def kernel_source(
    spec: KernelsSpec, *, attends: bool = True, allow_mixed: bool = False
) -> KernelSource:
    """Decide between hardware and models.

    Args:
        spec: The scenario's kernel section.
        attends: Whether the level runs sparse attention, and so FlashMLA.
        allow_mixed: Whether a missing FlashMLA may be stood in for beside real kernels.

    Raises:
        CapabilityMissingError: when hardware is asked for (or a GPU is there to be used) and
            something of it is missing.
    """
    if spec.dsa_kernel_backend == "none":
        return KernelSource(modelled=False, kernels={"indexer": "torch", "attention": "torch"})
    if spec.dsa_kernel_backend == "tilelang":
        return _tilelang()
    has_gpu = torch.cuda.is_available()
    wanted = spec.source
    if wanted == "hardware" or (wanted == "auto" and has_gpu):
        return _hardware(has_gpu, attends=attends, allow_mixed=allow_mixed)
    modelled = spec.modelled
    release = release_table(modelled.cudnn_frontend)
    label = f"modelled {modelled.cudnn_frontend} {modelled.arch}"
    return KernelSource(
        modelled=True,
        kernels=dict.fromkeys(_OPERATIONS, label),
        facts={
            "accepts_causal_offsets": release.accepts_causal_offsets,
            "mask_alignment": str(release.mask_alignment),
        },
        version=modelled.cudnn_frontend,
        arch=modelled.arch,
    )


def _tilelang() -> KernelSource:
    """Megatron calls these kernels by itself; the harness sees what it makes of them."""
    if not torch.cuda.is_available():
        raise CapabilityMissingError("usable GPU with TileLang (tilelang is never modelled)")
    if importlib.util.find_spec("tilelang") is None:
        raise CapabilityMissingError("tilelang on a machine with a GPU")
    major, minor = torch.cuda.get_device_capability()
    kernels = {"indexer": "hardware", "attention": "hardware"}
    return KernelSource(modelled=False, kernels=kernels, arch=f"sm{major}{minor}")


def _hardware(has_gpu: bool, *, attends: bool, allow_mixed: bool) -> KernelSource:
    if not has_gpu:
        raise CapabilityMissingError("usable GPU (kernels.source is hardware)")
    installed = installed_kernels()
    if installed.cudnn_frontend is None:
        raise CapabilityMissingError("nvidia-cudnn-frontend on a machine with a GPU")
    missing = installed.flash_mla is None
    if missing and attends and not allow_mixed:
        raise CapabilityMissingError(
            "flash_mla on a machine with a GPU (--allow-mixed lets a model stand in for it)"
        )
    found = installed_facts()
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm{major}{minor}"
    kernels = dict.fromkeys(_OPERATIONS, "hardware")
    if missing:
        kernels[_FLASH_MLA] = f"modelled FlashMLA {arch}" if attends else "none"
    return KernelSource(
        modelled=False,
        kernels=kernels,
        facts={
            "accepts_causal_offsets": found.accepts_causal_offsets,
            "mask_alignment": found.mask_alignment,
        },
        version=installed.cudnn_frontend,
        arch=arch,
        flash_mla="hardware" if not missing else "modelled" if attends else "absent",
    )


CUDA_BRANCHES = "tensors answer is_cuda"
"""Name of the shim under which Megatron takes its CUDA branches with modelled kernels.

On CPU tensors it would add a tie-break bias before top-k, skip FlashMLA's head-count check and pad
heads differently: not what production runs.
"""


PRODUCTION_BRANCHES = {
    "_use_dense_indexer_topk_tie_break": "no bias of up to 1e-12 on the scores before top-k",
    "_flash_mla_supports_head_count": "the query head count is checked against the device",
}
"""Functions of 0.19.2's cuDNN caller whose CUDA branch runs with modelled kernels, and its effect.

Not taken on CPU ranks: length checks of the layout builder, which CUDA callers skip to avoid a
synchronisation (they only refuse lengths that are refused here before the run).
"""


def as_production(tensor: torch.Tensor, source: KernelSource) -> torch.Tensor:
    """Return an input as production should see it: claiming CUDA where kernels are modelled."""
    return cuda_like(tensor) if source.modelled else tensor


@contextlib.contextmanager
def kernels_installed(
    spec: KernelsSpec,
    source: KernelSource,
    recorder: Recorder,
    *,
    seed: int,
    overlays: Sequence[str] = (),
    hook: TensorHook = PLAIN_HOOK,
) -> Iterator[None]:
    """Install the kernels (observed) into Megatron's cuDNN module, and undo it at the end.

    Args:
        spec: The scenario's kernel section.
        source: Decision of ``kernel_source``.
        recorder: Receives every wrapper call.
        seed: Seeds the arbitrary choices of modelled kernels.
        overlays: Names of overlays to put between caller and kernels.
        hook: How modelled kernels read the caller's tensors and hand back results.
    """
    if spec.dsa_kernel_backend == "none":
        yield
        return
    if spec.dsa_kernel_backend == "tilelang":
        try:
            yield
        finally:
            _choose_anew()
        return
    module: Any = importlib.import_module(_CUDNN)
    replaced = _replacements(spec, source, recorder, module, seed, hook)
    for name in overlays:
        # Outside the observed namespace, so that the record shows what the kernel was given.
        replaced["_cudnn_dsa"] = OVERLAYS[name].overlay.wrap(replaced["_cudnn_dsa"])
    saved = {name: getattr(module, name) for name in replaced}
    for name, value in replaced.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(module, name, value)
        _choose_anew()


def _choose_anew() -> None:
    """Let the dispatcher choose for the next scenario: it caches its backend in module globals."""
    dispatch: Any = importlib.import_module(_DISPATCH)
    dispatch._BACKEND = dispatch._BACKEND_SELECTION = None


def _replacements(
    spec: KernelsSpec,
    source: KernelSource,
    recorder: Recorder,
    module: Any,
    seed: int,
    hook: TensorHook,
) -> dict[str, Any]:
    replaced: dict[str, Any] = {}
    flash_mla: Callable[..., Any] | None
    if source.modelled:
        modelled = spec.modelled
        namespace = modelled_namespace(
            cudnn_frontend=modelled.cudnn_frontend,
            arch=modelled.arch,
            defects=modelled.defects,
            seed=seed,
            hook=hook,
        )
        flash_mla = modelled_flash_mla(arch=modelled.arch, findings=namespace.findings, hook=hook)
        recorder.findings = namespace.findings
        capability = _CAPABILITY[modelled.arch]
        replaced["_current_sm"] = lambda: capability
        origin = "modelled"
    else:
        module._ensure_dsa_namespace()
        namespace, flash_mla = module._cudnn_dsa, _device_flash_mla(module, source)
        origin = "hardware"
    replaced["_cudnn_dsa"] = ObservedNamespace(namespace, origin, recorder)
    if flash_mla is not None:
        where = source.flash_mla if origin == "hardware" else origin
        replaced["_flash_mla_sparse_fwd"] = observed_kernel(flash_mla, _FLASH_MLA, where, recorder)
    if spec.score_chunk_bytes is not None:
        replaced["_INDEXER_SCORE_CHUNK_MAX_BYTES"] = spec.score_chunk_bytes
    return replaced


def _device_flash_mla(module: Any, source: KernelSource) -> Callable[..., Any] | None:
    """Return what attends on a device: FlashMLA, or where that may be missing its model."""
    if source.flash_mla == "absent":
        return None
    if source.flash_mla == "hardware":
        module._ensure_flash_mla()
        found: Callable[..., Any] = module._flash_mla_sparse_fwd
        return found
    model = modelled_flash_mla(arch="sm90" if str(source.arch).startswith("sm9") else "sm100")

    def on_the_host(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        given = [_on_host(value) for value in args]
        named = {name: _on_host(value) for name, value in kwargs.items()}
        results = model(*given, **named)
        return tuple(result.to(args[0].device) for result in results)

    return on_the_host


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
