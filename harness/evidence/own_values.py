"""Reference values of one rank, with what the group's ranks share summed over real groups.

Each rank computes its own rows alone, so that the reference of a group costs what one pass over
its rows does, shared out over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from harness.layout import Pack, expand_runs, key_runs
from harness.production.groups import Groups, gather_rows, sum_over_ranks
from harness.reference.attention import AttentionOperands
from harness.reference.expected import Expected
from harness.reference.group_values import group_loss
from harness.reference.loss_terms import LossSpec
from harness.reference.operands import Operands
from harness.reference.rank_values import RankValues, SharedGradients, rank_values
from harness.reference.rows import rows_of_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnValues:
    """What one rank should yield.

    Attributes:
        rank: Values of its rows.
        keys: Gradients summed over all ranks; of the keys, the rank's own rows in local order.
        loss: The group's loss as it is logged, None without loss.
    """

    rank: RankValues
    keys: SharedGradients
    loss: Expected | None = None


def own_values(
    attention: AttentionOperands,
    indexer: Operands | None,
    picks: torch.Tensor,
    pack: Pack,
    groups: Groups,
    *,
    loss: LossSpec | None,
    upstream: torch.Tensor | None,
) -> OwnValues:
    """Compute what this rank should yield; every rank of its group takes part.

    Args:
        attention: The rank's query rows and all keys in packed order.
        indexer: The same of the indexer; needed for a loss.
        picks: (local rows, P) packed ids that attention was given.
        pack: The layout.
        groups: Groups of this rank.
        loss: The indexer loss, None for none.
        upstream: (local rows, H, V) gradient of the output, None for none.
    """
    table = rows_of_rank(pack, groups.cp_rank)
    divisor = 1.0
    if loss is not None:
        tables = [rows_of_rank(pack, rank) for rank in range(pack.cp_size)]
        counts = [int(loss.counted_rows(each).sum()) for each in tables]
        divisor = loss.divisors(counts)[groups.cp_rank]
    rank, shared = rank_values(
        attention,
        table,
        picks,
        indexer=indexer,
        loss=loss,
        divisor=divisor,
        grad_output=upstream,
    )
    index = torch.tensor(expand_runs(key_runs(pack, groups.cp_rank)), dtype=torch.int64)
    keys = SharedGradients(
        key=_summed(shared.key, groups, index),
        up_v=_summed(shared.up_v, groups),
        k_indexer=_summed(shared.k_indexer, groups, index),
    )
    total = None
    if loss is not None and rank.loss is not None:
        total = group_loss(_gathered_losses(rank.loss, groups), loss)
    return OwnValues(rank=rank, keys=keys, loss=total)


def with_loss(values: OwnValues, losses: OwnValues) -> OwnValues:
    """Take the loss and its gradients from ``losses``, and the rest from ``values``."""
    other = losses.rank
    rank = replace(
        values.rank,
        kl=other.kl,
        loss=other.loss,
        grad_q_indexer=other.grad_q_indexer,
        grad_weights=other.grad_weights,
    )
    keys = replace(values.keys, k_indexer=losses.keys.k_indexer)
    return OwnValues(rank=rank, keys=keys, loss=losses.loss)


def _summed(
    part: Expected | None, groups: Groups, index: torch.Tensor | None = None
) -> Expected | None:
    """Sum a shared gradient over the group's ranks; squares of error scales add up."""
    if part is None:
        return None
    dtype = part.value.dtype
    shape = part.value.shape[:1] + (1,) * (part.value.dim() - 1)
    slack = part.slack
    if groups.cp_size > 1:
        # Every rank has to send the same shapes, whether it has a slack or not.
        slack = part.value.new_zeros(shape) if slack is None else slack
        slack = sum_over_ranks(slack, groups).to(dtype)
    total = Expected(
        value=sum_over_ranks(part.value, groups).to(dtype),
        scale=sum_over_ranks(part.scale.square(), groups).sqrt().to(dtype),
        slack=slack,
        length=part.length * groups.cp_size,
        partials=part.partials * groups.cp_size,
    )
    return total if index is None else total.take(index)


def _gathered_losses(loss: Expected, groups: Groups) -> list[Expected]:
    values = gather_rows(torch.stack((loss.value, loss.scale)), groups)
    return [Expected(value=v[0], scale=v[1], length=loss.length) for v in values]
