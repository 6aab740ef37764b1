"""Call evidence: every kernel wrapper call with the shapes it was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from harness.evidence.slots import slot_facts
from harness.evidence.storage import Callers, address, callers_tensors, shared_with
from harness.production.recorder import HookCall, Recorder
from harness.record.path import CallEvidence, TensorFacts
from harness.reference.site import Site

_SCALARS = (bool, int, float, str, type(None))


def kernel_calls(recorder: Recorder, site: Site) -> Iterator[CallEvidence]:
    """Describe the kernel calls of one forward, in order."""
    callers: dict[int, Callers] = {}
    for call in recorder.calls:
        if call.origin != "megatron":
            if call.layer not in callers:
                callers[call.layer] = callers_tensors(recorder, call.layer)
            yield _describe(call, site, callers[call.layer])


def _describe(call: HookCall, site: Site, callers: Callers) -> CallEvidence:
    tensors, facts = [], {}
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            tensors.append(tensor_facts(name, value, callers))
        elif isinstance(value, _SCALARS):
            facts[name] = value
    return CallEvidence(
        symbol=call.symbol,
        origin=call.origin,
        microbatch=site.microbatch,
        layer=call.layer,
        seed=site.seed,
        result=call_result(call),
        tensors=tuple(tensors),
        facts=facts | slot_facts(call),
    )


def tensor_facts(name: str, tensor: torch.Tensor, callers: Callers) -> TensorFacts:
    """Shape, dtype, device and memory of a tensor."""
    return TensorFacts(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        contiguous=tensor.is_contiguous(),
        address=address(tensor),
        shares=shared_with(tensor, callers),
    )


def call_result(call: HookCall) -> str:
    """What a call gave back: ``tensor``, ``none`` (declined) or ``error``."""
    if not call.returned:
        return "error"
    result: Any = call.result
    return "none" if result is None else "tensor"
