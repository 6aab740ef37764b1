"""What every modelled operation gets beside its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from harness.kernels.addresses import Bounds
from harness.kernels.releases import Arch, Release
from harness.kernels.wrapping import PLAIN_HOOK, TensorHook
from harness.record.evidence import AddressFaultEvidence


class NotModelledError(NotImplementedError):
    """The release serves this call, the model does not (block-scaled precisions, for one)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """One call of a modelled wrapper, handed to ``on_call`` after it ended.

    Attributes:
        name: Wrapper name.
        arguments: Bound arguments with defaults, as the caller gave them.
        result: What was returned, None when it raised.
        error: What was raised, None when it returned.
        seconds: Time inside the model.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any
    error: BaseException | None
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelContext:
    """Release, architecture, switched-on defects and the one source of chance.

    Attributes:
        release: Table row.
        arch: Architecture.
        defects: Names switched on.
        generator: Source of pick order and tie choices; a seed fixes the whole sequence of calls.
        findings: Silent out-of-row accesses, appended to by every call.
        hook: Tensor types of the caller.
    """

    release: Release
    arch: Arch
    defects: frozenset[str]
    generator: torch.Generator
    findings: list[AddressFaultEvidence] = field(default_factory=list)
    hook: TensorHook = PLAIN_HOOK

    def bounds(self, kernel: str) -> Bounds:
        """Return the judge of one call's addresses."""
        return Bounds(kernel=kernel, findings=self.findings)

    def numpy_generator(self) -> np.random.Generator:
        """Return a numpy generator seeded from the context's (for row-by-row simulations)."""
        seed = int(torch.randint(0, 2**62, (1,), generator=self.generator).item())
        return np.random.default_rng(seed)
