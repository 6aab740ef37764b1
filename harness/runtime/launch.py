"""How a level ran a case, so that it can run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.runtime.cases import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A forward of one case.

    Attributes:
        cp_rank: Rank in the context-parallel group, real or logical.
        module: Production module whose tensors the forward reads, None at level ``scorer``.
        inputs: Local inputs by name.
        forward: Runs production once on a case and such inputs.
        rows: Input name to its dimension of local rows.
        keys: Input name to its dimension of all keys in packed order.
        trained: Runs forward and backward on fresh inputs and returns output and gradients by
            name; None where the level does not offer it, or nothing is trained.
        interrupted: Called behind a forward that an exception ended, before the next; None where
            nobody looks.
    """

    cp_rank: int
    module: torch.nn.Module | None
    inputs: Mapping[str, torch.Tensor]
    forward: Callable[[Case, Mapping[str, torch.Tensor]], Any]
    rows: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)
    trained: Callable[[Case], Mapping[str, torch.Tensor]] | None = None
    interrupted: Callable[[], None] | None = None

    def only(self, rows: tuple[int, int], keys: tuple[int, int]) -> dict[str, torch.Tensor]:
        """Inputs of some rows and keys, each given as (first, number)."""
        parts = {}
        for name, tensor in self.inputs.items():
            part = tensor
            for dims, (start, length) in ((self.rows, rows), (self.keys, keys)):
                if name in dims:
                    part = part.narrow(dims[name], start, length)
            parts[name] = part.contiguous()
        return parts
