"""Tensors of a DSAttention call whose backward has run, and the values judged of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from harness.kernels.wrapping import unwrap


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedCall:
    """One call on one rank.

    Attributes:
        query: ``[rows, batch, heads, 576]``, or ``[rows, heads, 576]``; gradient retained. Heads
            are those of the tensor-parallel rank.
        key: ``[rows, batch, 1, 576]``, or ``[rows, 1, 576]``, local; gradient retained.
        indexer: ``q [rows, batch, heads, dim]``, ``k [rows, batch, dim]``, ``weights [rows, batch,
            heads]`` of the indexer, local, with their gradients retained; empty for a layer that
            shares an earlier one's picks.
        output: ``[rows, batch, heads * v_head_dim]``.
        upstream: Gradient given to the output; None for the one retained by it.
        up_v: ``[heads, v_head_dim, 512]``; gradient retained.
        hidden: ``[rows, batch, hidden]`` hidden states as the indexer was given them; under
            sequence parallelism the rank's share of the rows.
        low_rank: ``[rows, batch, q_lora_rank]``, likewise.
        parameters: Of the indexer, by their names in the module.
    """

    query: torch.Tensor
    key: torch.Tensor
    output: torch.Tensor
    up_v: torch.Tensor
    upstream: torch.Tensor | None = None
    indexer: tuple[torch.Tensor, ...] = ()
    hidden: torch.Tensor | None = None
    low_rank: torch.Tensor | None = None
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def given(self) -> torch.Tensor:
        """Gradient that flowed into the output; zero when none did."""
        return grad_or_zero(self.output) if self.upstream is None else unwrap(self.upstream)

    @property
    def streams(self) -> int:
        """Sequences of an unpacked batch; 1 for a pack."""
        return self.output.size(1)

    def of_rows(self) -> dict[str, torch.Tensor]:
        """Return values ``[rows, batch, ...]`` that belong to query rows, plain and detached."""
        found = {
            "attention_output": unwrap(self.output).detach(),
            "grad.query": _grad(self.query, sbhd=True),
        }
        if self.indexer:
            q_indexer, _k, weights = self.indexer
            found |= {"grad.q_indexer": _grad(q_indexer), "grad.weights": _grad(weights)}
        return found

    def of_keys(self) -> dict[str, torch.Tensor]:
        """Return values ``[rows, batch, ...]`` that belong to the rank's own keys."""
        found = {"grad.key": _grad(self.key, sbhd=True)[:, :, 0]}
        if self.indexer:
            found["grad.k_indexer"] = _grad(self.indexer[1])
        return found


def sbhd(tensor: torch.Tensor) -> torch.Tensor:
    """View a packed ``[rows, heads, dim]`` query or key with a batch dimension of one."""
    return tensor.unsqueeze(1) if tensor.dim() == 3 else tensor


def grad_or_zero(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's gradient; one that never arrived counts as zero.

    The comparison then says how far off that is.
    """
    if tensor.grad is None:
        return torch.zeros_like(unwrap(tensor))
    return unwrap(tensor.grad).detach()


def _grad(tensor: torch.Tensor, *, sbhd: bool = False) -> torch.Tensor:
    grad = grad_or_zero(tensor)
    return grad.unsqueeze(1) if sbhd and grad.dim() == 3 else grad
