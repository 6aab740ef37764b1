"""Call evidence: every kernel wrapper call with the shapes it was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from harness.production.recorder import HookCall, Recorder
from harness.record.evidence import CallEvidence, TensorFacts
from harness.reference.site import Site

_SCALARS = (bool, int, float, str, type(None))


def kernel_calls(recorder: Recorder, site: Site) -> Iterator[CallEvidence]:
    """Describe the kernel calls of one forward, in order."""
    for call in recorder.calls:
        if call.origin != "megatron":
            yield _describe(call, site)


def _describe(call: HookCall, site: Site) -> CallEvidence:
    tensors, facts = [], {}
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            tensors.append(tensor_facts(name, value))
        elif isinstance(value, _SCALARS):
            facts[name] = value
    return CallEvidence(
        symbol=call.symbol,
        origin=call.origin,
        microbatch=site.microbatch,
        layer=call.layer,
        seed=site.seed,
        result=_result(call),
        tensors=tuple(tensors),
        facts=facts,
    )


def tensor_facts(name: str, tensor: torch.Tensor) -> TensorFacts:
    """Shape, dtype, device and contiguity of a tensor."""
    return TensorFacts(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        contiguous=tensor.is_contiguous(),
    )


def _result(call: HookCall) -> str:
    if not call.returned:
        return "error"
    result: Any = call.result
    return "none" if result is None else "tensor"
