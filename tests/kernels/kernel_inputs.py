"""Inputs and plain references that the kernel tests share."""

from __future__ import annotations

import torch

from harness.kernels import RELEASES, ModelledNamespace, modelled_namespace

FORWARD_PAIRS = [
    (version, arch) for version, release in RELEASES.items() for arch in sorted(release.forward)
]
"""Every release and architecture that forward (and top-k) runs on."""
FUSED_PAIRS = [
    (version, arch) for version, release in RELEASES.items() for arch in sorted(release.fused)
]
BOTTOM_RIGHT = [
    pair for pair in FORWARD_PAIRS if RELEASES[pair[0]].mask_alignment == "bottom_right"
]
TOP_LEFT = [pair for pair in FORWARD_PAIRS if RELEASES[pair[0]].mask_alignment == "top_left"]


def healthy(version: str, arch: str, seed: int = 0) -> ModelledNamespace:
    return modelled_namespace(version, arch, defects="none", seed=seed)


def bshd(batch: int, q_rows: int, keys: int, heads: int = 32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, q_rows, heads, 128, generator=generator).bfloat16()
    k = torch.randn(batch, keys, 1, 128, generator=generator).bfloat16()
    w = torch.randn(batch, q_rows, heads, generator=generator).bfloat16()
    return q, k, w


def thd(rows: int, keys: int, heads: int = 32, seed: int = 0):
    q, k, w = bshd(1, rows, keys, heads, seed)
    return q[0], k[0], w[0]


def prefix(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def exact(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(R, H, D), (N, 128), (R, H) to fp64 (R, N), no mask."""
    dots = torch.einsum("rhd,nd->rhn", q.double(), k.double())
    return (dots.relu() * w.double().unsqueeze(2)).sum(1)


def visible(limits: list[int], width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(limits).unsqueeze(1)


def assert_scores(scores: torch.Tensor, expected: torch.Tensor, seen: torch.Tensor) -> None:
    """Visible cells are right, all others are -inf."""
    assert torch.equal(scores.isneginf(), ~seen)
    torch.testing.assert_close(
        scores[seen].double(), expected[seen], rtol=1e-5, atol=1e-3, check_dtype=False
    )


def top_sets(scores: torch.Tensor, lengths: list[int], top_k: int) -> list[set[int]]:
    """Best columns per row for scores without ties at the cut."""
    return [
        set(scores[row, :length].topk(min(top_k, length)).indices.tolist()) if length > 0 else set()
        for row, length in enumerate(lengths)
    ]


def picked_sets(indices: torch.Tensor) -> list[set[int]]:
    return [{column for column in row if column >= 0} for row in indices.tolist()]
