"""What a whole context-parallel group should compute, from inputs in packed order.

A token's inputs do not depend on the CP size, so neither may its output, nor the sum of a gradient
over ranks; the loss follows the rule of its reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.layout import Pack, expand_runs, key_runs, local_runs
from harness.reference.attention import CHUNK_BYTES, LATENT_DIM, AttentionOperands
from harness.reference.expected import Expected
from harness.reference.loss_terms import CountedRows, LossSpec
from harness.reference.operands import Operands
from harness.reference.picks import reference_picks
from harness.reference.rank_values import RankValues, SharedGradients, add_shared, rank_values
from harness.reference.rows import RowTable, rows_of_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupInputs:
    """Inputs of all ranks, gathered and in packed order (padding and tail included).

    Attributes:
        query: (T, H, D) absorbed queries of all heads, T rows of the group.
        key: (N, D).
        softmax_scale: Of the attention.
        up_v: (H, V, latent_dim), or None to stop at the latent.
        q_indexer: (T, Hi, Di), None without indexer, like the following.
        k_indexer: (N, Di).
        weights: (T, Hi) with every scale in them.
        latent_dim: ``kv_lora_rank``.
        dtype: ``fp32`` or ``fp64``, of the reference arithmetic.
        chunk_bytes: Memory for a block of rows.
    """

    query: Tensor
    key: Tensor
    softmax_scale: float
    up_v: Tensor | None = None
    q_indexer: Tensor | None = None
    k_indexer: Tensor | None = None
    weights: Tensor | None = None
    latent_dim: int = LATENT_DIM
    dtype: str = "fp32"
    chunk_bytes: int = CHUNK_BYTES

    def attention(self, pack: Pack, cp_rank: int) -> AttentionOperands:
        """Return the attention operands of one rank's local rows."""
        return AttentionOperands(
            query=local_rows(self.query, pack, cp_rank),
            key=self.key,
            softmax_scale=self.softmax_scale,
            up_v=self.up_v,
            latent_dim=self.latent_dim,
            dtype=self.dtype,
            chunk_bytes=self.chunk_bytes,
        )

    def indexer(self, pack: Pack, cp_rank: int) -> Operands | None:
        """Return the indexer operands of one rank's local rows, None without indexer inputs.

        Raises:
            ValueError: when only some of the indexer's inputs are there.
        """
        q, k, weights = self.q_indexer, self.k_indexer, self.weights
        if q is None and k is None and weights is None:
            return None
        if q is None or k is None or weights is None:
            raise ValueError(
                "q_indexer, k_indexer and weights go together; give all of them or none"
            )
        return Operands(
            q=local_rows(q, pack, cp_rank),
            k=k,
            w=local_rows(weights, pack, cp_rank),
            dtype=self.dtype,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupValues:
    """What the ranks of a group should yield.

    Attributes:
        pack: The layout.
        ranks: Values of each rank's rows, in rank order.
        shared: Gradients summed over all ranks, keys in packed order.
        loss: The group's loss as it is logged, None without loss.
    """

    pack: Pack
    ranks: tuple[RankValues, ...]
    shared: SharedGradients
    loss: Expected | None = None

    def local_keys(self, cp_rank: int) -> SharedGradients:
        """Return the shared gradients as one rank holds them: its own keys' rows after the sum.

        This is what the backward of the key gather leaves (a reduce-scatter that sums), in the
        order of the rank's keys before the gather.

        Raises:
            LayoutError: ``cp_rank`` is not a rank of the pack.
        """
        index = torch.tensor(expand_runs(key_runs(self.pack, cp_rank)), dtype=torch.int64)

        def rows(full: Expected | None) -> Expected | None:
            return None if full is None else full.take(index)

        return replace(
            self.shared, key=rows(self.shared.key), k_indexer=rows(self.shared.k_indexer)
        )


def group_values(
    inputs: GroupInputs,
    pack: Pack,
    picks: Sequence[Tensor],
    *,
    loss: LossSpec | None = None,
    grad_output: Tensor | None = None,
) -> GroupValues:
    """Compute what every rank of a group should yield.

    For an unpacked batch, call it once for each of its streams: a rank's mean is then the mean of
    the streams' means, which count equally many rows.

    Args:
        inputs: Of all ranks.
        pack: The layout.
        picks: (local rows, P) packed ids for each rank, as the build gave them to attention, or
            from ``exact_picks``.
        loss: The indexer loss, None for none.
        grad_output: (T, H, V) upstream gradient of the output in packed order.

    Raises:
        ValueError: when the inputs are not of this pack.
    """
    _check(inputs, pack, picks, grad_output)
    tables = [rows_of_rank(pack, cp_rank) for cp_rank in range(pack.cp_size)]
    divisors = (1.0,) * pack.cp_size
    if loss is not None:
        divisors = loss.divisors([int(loss.counted_rows(table).sum()) for table in tables])
    ranks: list[RankValues] = []
    shared = SharedGradients()
    for cp_rank, table in enumerate(tables):
        upstream = None if grad_output is None else local_rows(grad_output, pack, cp_rank)
        values, part = rank_values(
            inputs.attention(pack, cp_rank),
            table,
            picks[cp_rank],
            indexer=inputs.indexer(pack, cp_rank),
            loss=loss,
            divisor=divisors[cp_rank],
            grad_output=upstream,
        )
        ranks.append(values)
        shared = add_shared(shared, part)
    return GroupValues(
        pack=pack,
        ranks=tuple(ranks),
        shared=shared,
        loss=None if loss is None else group_loss([r.loss for r in ranks if r.loss], loss),
    )


def group_loss(losses: Sequence[Expected], loss: LossSpec) -> Expected:
    """Return the group's loss from its ranks' losses, as it is logged.

    The logged value is reduced in fp32 whatever the kernels compute in, so that it counts as one
    sum and not as partial sums in the format under test.
    """
    factor = loss.group_factor(len(losses))
    return Expected(
        value=torch.stack([part.value for part in losses]).sum() * factor,
        scale=torch.stack([part.scale for part in losses]).sum() * factor,
        length=sum(part.length for part in losses),
    )


def exact_picks(
    inputs: GroupInputs,
    pack: Pack,
    *,
    topk: int,
    counted: CountedRows = CountedRows.ALL,
) -> tuple[Tensor, ...]:
    """Select by the exact scorer for each rank, (local rows, topk) packed ids, then -1.

    Args:
        inputs: With the indexer's.
        pack: The layout.
        topk: Keys per row at most.
        counted: ``ALL`` selects for padding rows inside a sequence too, as builds do.

    Raises:
        ValueError: when the inputs have no indexer.
    """
    picks = []
    for cp_rank in range(pack.cp_size):
        indexer = inputs.indexer(pack, cp_rank)
        if indexer is None:
            raise ValueError("selecting needs q_indexer, k_indexer and weights; give them")
        table: RowTable = rows_of_rank(pack, cp_rank)
        if counted == CountedRows.ALL:
            table = replace(table, valid=table.limits > 0)
        picks.append(reference_picks(indexer, table, topk=topk))
    return tuple(picks)


def local_rows(packed: Tensor, pack: Pack, cp_rank: int) -> Tensor:
    """Return a rank's query rows of a packed tensor (T, ...), in its local order.

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    index = torch.tensor(expand_runs(local_runs(pack, cp_rank)), dtype=torch.int64)
    return packed[index.to(packed.device)]


def packed_rows(local: Sequence[Tensor], pack: Pack) -> Tensor:
    """Bring the query rows of all ranks, in rank order, into packed order."""
    gathered = torch.cat(list(local))
    out = torch.empty_like(gathered)
    index = [
        torch.tensor(expand_runs(local_runs(pack, r)), dtype=torch.int64)
        for r in range(pack.cp_size)
    ]
    out[torch.cat(index).to(out.device)] = gathered
    return out


def _check(
    inputs: GroupInputs, pack: Pack, picks: Sequence[Tensor], grad_output: Tensor | None
) -> None:
    if len(picks) != pack.cp_size:
        raise ValueError(f"picks must be of {pack.cp_size} ranks, found {len(picks)}")
    rows = {"query": inputs.query, "q_indexer": inputs.q_indexer, "weights": inputs.weights}
    rows["grad_output"] = grad_output
    keys = {"key": inputs.key, "k_indexer": inputs.k_indexer}
    for tensors, expected in ((rows, pack.total_q), (keys, pack.total_k)):
        for name, tensor in tensors.items():
            if tensor is not None and tensor.shape[0] != expected:
                raise ValueError(
                    f"{name} has {tensor.shape[0]} rows but the pack has {expected}, padding and "
                    "tail included; give the rows of all ranks in packed order"
                )
