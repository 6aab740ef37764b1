"""What one rank should compute: outputs of its rows, its loss, and its part of every gradient.

The selection is given, so that it is judged apart from what is computed over it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from torch import Tensor

from harness.reference.attention import AttentionOperands
from harness.reference.attention_gradients import attention_reference
from harness.reference.clean_picks import CleanPicks, clean_picks
from harness.reference.expected import Expected, sum_partials
from harness.reference.indexer_loss import indexer_reference
from harness.reference.loss_terms import LossSpec
from harness.reference.operands import Operands
from harness.reference.rows import RowTable
from harness.reference.support import Selected, Visible


@dataclass(frozen=True, kw_only=True, slots=True)
class RankValues:
    """Values of one rank's R local rows. Gradients are None where nothing was asked that has them.

    Attributes:
        table: The rows.
        picks: Their keys, cleaned, with the counts of what was left out.
        output: (R, H, V).
        lse: (R, H) natural logarithm, -inf for a row without keys.
        grad_query: (R, H, D).
        kl: (R,) divergence of each row, whether it counts or not.
        loss: Scalar, the rank's own loss as its build reports it, coefficient included.
        grad_q_indexer: (R, Hi, Di), of ``backward_scale`` times the rank's loss.
        grad_weights: (R, Hi), likewise.
    """

    table: RowTable
    picks: CleanPicks
    output: Expected
    lse: Tensor
    grad_query: Expected | None = None
    kl: Expected | None = None
    loss: Expected | None = None
    grad_q_indexer: Expected | None = None
    grad_weights: Expected | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedGradients:
    """Gradients of what all ranks use, of one rank's rows or summed over ranks.

    Attributes:
        key: (N, D) in packed order.
        up_v: (H, V, latent_dim).
        k_indexer: (N, Di) in packed order.
    """

    key: Expected | None = None
    up_v: Expected | None = None
    k_indexer: Expected | None = None


def rank_values(
    attention: AttentionOperands,
    table: RowTable,
    picks: Tensor,
    *,
    indexer: Operands | None = None,
    loss: LossSpec | None = None,
    divisor: float = 1.0,
    grad_output: Tensor | None = None,
) -> tuple[RankValues, SharedGradients]:
    """Compute a rank's values and its part of the shared gradients.

    Args:
        attention: All local rows, all heads (of every tensor-parallel rank) and all keys.
        table: The rows wanted: all of the rank's, or a sample when only outputs are.
        picks: (local rows, P) packed ids, negative for empty slots, as the build gave them to
            attention. Keys that a row may not see, and repeats, are left out and counted.
        indexer: Indexer operands of the same rows and keys; needed for a loss.
        loss: The loss, None for none. The target takes no gradient, and the indexer none of the
            output's, so the two kinds of gradient never mix.
        divisor: What the rank's sum is divided by, from ``LossSpec.divisors``.
        grad_output: (R, H, V) upstream gradient of the outputs.

    Raises:
        ValueError: when the parts are not of the same rows and keys, or a sample is to have
            gradients or a loss.
    """
    if table.is_sample and (grad_output is not None or loss is not None):
        raise ValueError(
            f"the table holds {len(table)} of {table.num_local_rows} rows, but loss and gradients "
            "sum over all rows of a rank; give the whole table, or ask for outputs only"
        )
    if loss is not None and indexer is None:
        raise ValueError("a loss needs the indexer's operands; give indexer, or no loss")
    device = attention.query.device
    rows = attention.take(table.row)
    clean = clean_picks(picks.to(device), table)
    selected = Selected.of(clean.ids, num_keys=table.num_keys)
    values = attention_reference(rows, selected, grad_output)
    result = RankValues(
        table=table,
        picks=clean,
        output=values.output,
        lse=values.lse,
        grad_query=values.grad_query,
    )
    shared = SharedGradients(key=values.grad_key, up_v=values.grad_up_v)
    if loss is None or indexer is None:
        return result, shared
    return _with_loss(result, shared, rows, indexer, selected, loss, divisor)


def _with_loss(
    result: RankValues,
    shared: SharedGradients,
    attention: AttentionOperands,
    indexer: Operands,
    selected: Selected,
    loss: LossSpec,
    divisor: float,
) -> tuple[RankValues, SharedGradients]:
    table = result.table
    visible = Visible.of(
        table.starts, table.limits, num_keys=table.num_keys, device=attention.query.device
    )
    counted = loss.counted_rows(table).to(indexer.q.device, indexer.torch_dtype)
    row_weights = counted * (loss.coeff / divisor)
    found = indexer_reference(
        indexer,
        attention,
        selected if loss.sparse else visible,
        row_weights * loss.backward_scale,
        relu=loss.relu,
    )
    total = Expected(
        value=(row_weights * found.kl.value).sum(),
        scale=(row_weights * found.kl.scale).sum(),
        length=max(1, len(table)),
    )
    return (
        replace(
            result,
            kl=found.kl,
            loss=total,
            grad_q_indexer=found.grad_q,
            grad_weights=found.grad_weights,
        ),
        replace(shared, k_indexer=found.grad_k),
    )


def add_shared(one: SharedGradients, other: SharedGradients) -> SharedGradients:
    """Add up the shared gradients of two disjoint sets of rows."""
    names = [f.name for f in fields(SharedGradients)]
    sums = {}
    for name in names:
        parts = [p for p in (getattr(one, name), getattr(other, name)) if p is not None]
        sums[name] = sum_partials(parts) if parts else None
    return SharedGradients(**sums)
