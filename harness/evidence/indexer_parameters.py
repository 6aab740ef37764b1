"""Gradients of the indexer's parameters on one rank, against the reference.

Every tensor-parallel rank holds the indexer whole and computes it over all rows of its
context-parallel rank, so that its gradient is the same on each of them (Megatron averages it over
tensor parallelism). Over context parallelism each rank has the part of its own rows: queries and
head weights from its own rows' loss, keys from all rows that scored the rank's keys, which the
backward of the key gather has summed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.evidence.own_values import OwnValues
from harness.evidence.trained_call import TrainedCall, grad_or_zero
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.production.groups import Groups, gather_shards
from harness.reference.expected import Expected, sum_partials
from harness.reference.indexer_projection import IndexerProjection, Rotary, parameter_gradients
from harness.reference.rows import rows_of_rank
from harness.scenario.spec import Scenario


def parameter_names(call: TrainedCall) -> dict[str, torch.Tensor]:
    """Return the indexer's parameters by the names of their gradients in records."""
    return {f"grad.param.{name}": parameter for name, parameter in call.parameters.items()}


def parameter_pairs(
    call: TrainedCall,
    streams: list[OwnValues],
    scenario: Scenario,
    pack: Pack,
    groups: Groups,
) -> Iterator[tuple[str, torch.Tensor, Expected]]:
    """Yield (name, what the build computed, what is due) for each parameter of the indexer."""
    parts = [
        _stream_part(call, values, scenario, pack, groups, stream)
        for stream, values in enumerate(streams)
    ]
    for name, parameter in call.parameters.items():
        due = [part[name] for part in parts if part is not None]
        zero = torch.zeros(parameter.shape)
        total = sum_partials(due) if due else Expected(value=zero, scale=zero)
        yield f"grad.param.{name}", grad_or_zero(parameter), total


def _stream_part(
    call: TrainedCall,
    values: OwnValues,
    scenario: Scenario,
    pack: Pack,
    groups: Groups,
    stream: int,
) -> dict[str, Expected] | None:
    rank, keys = values.rank, values.keys
    if rank.grad_q_indexer is None or rank.grad_weights is None or keys.k_indexer is None:
        return None
    assert call.hidden is not None, "a layer with an indexer has recorded what went into it"
    assert call.low_rank is not None, "a layer with an indexer has recorded what went into it"
    model = scenario.model
    projection = IndexerProjection(
        hidden=_all_rows(call.hidden, scenario, groups)[:, stream],
        low_rank=_all_rows(call.low_rank, scenario, groups)[:, stream],
        positions=rows_of_rank(pack, groups.cp_rank).position,
        key_weight=unwrap(call.parameters["linear_wk.weight"]),
        norm_weight=unwrap(call.parameters["k_norm.weight"]),
        norm_epsilon=model.layernorm_epsilon,
        num_heads=model.dsa_indexer_n_heads,
        rotary=Rotary(
            dim=model.qk_pos_emb_head_dim,
            base=model.rotary_base,
            interleaved=model.dsa_indexer_rope_interleaved,
        ),
    )
    return parameter_gradients(
        projection,
        grad_q=rank.grad_q_indexer,
        grad_k=keys.k_indexer,
        grad_weights=rank.grad_weights,
    )


def _all_rows(tensor: torch.Tensor, scenario: Scenario, groups: Groups) -> torch.Tensor:
    """Return the rows of the context-parallel rank; sequence parallelism had split them."""
    plain = unwrap(tensor)
    if plain.dim() == 2:
        plain = plain.unsqueeze(1)
    return gather_shards(plain, groups, dim=0) if scenario.parallel.sequence_parallel else plain
