"""Values and gradients of one attention call against the independent reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from harness.evidence.indexer_parameters import parameter_pairs
from harness.evidence.observation import ScorerObservation
from harness.evidence.own_values import OwnValues, own_values, with_loss
from harness.evidence.trained_call import TrainedCall, grad_or_zero, sbhd
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.production.groups import Groups, gather_rows, gather_shards, sum_over_ranks
from harness.production.packs import to_packed_order
from harness.production.recorder import Recorder
from harness.record.evidence import ValueEvidence
from harness.reference.attention import AttentionOperands
from harness.reference.expected import Expected, compare_expected, sum_partials
from harness.reference.loss_terms import CountedRows, LossReduction, LossSpec
from harness.reference.operands import Operands
from harness.reference.site import Site
from harness.reference.tolerances import load_tolerances
from harness.scenario.rules.expectations import loss_mode
from harness.scenario.spec import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A call against the reference.

    Attributes:
        records: One for each value.
        due: Value name to its reference, of the last stream.
        loss: The layer's loss as the group should log it, None without loss.
    """

    records: list[ValueEvidence]
    due: dict[str, Expected]
    loss: Expected | None


def training_values(
    call: TrainedCall,
    observation: ScorerObservation,
    *,
    recorder: Recorder,
    scenario: Scenario,
    pack: Pack,
    groups: Groups,
    site: Site,
) -> Judgement:
    """Compare output, loss and gradients of one rank with what the group should yield.

    The reference gets the build's own inputs and picks, gathered by the harness, so that selection
    and attention are judged apart.

    Args:
        call: Tensors of the call.
        observation: With the picks that its attention was given.
        recorder: With the scorer's calls.
        scenario: The scenario.
        pack: Layout of the microbatch.
        groups: Groups of this rank.
        site: Where the call belongs.

    """
    dtype, tolerances = scenario.values.dtype, load_tolerances()
    loss = loss_spec(scenario, site.microbatch, streams=call.streams) if call.indexer else None
    streams = [
        _stream_values(call, observation.picks[stream], scenario, pack, groups, loss, stream)
        for stream in range(call.streams)
    ]
    compared: list[tuple[str, torch.Tensor, Expected]] = []
    for stream, values in enumerate(streams):
        compared += _pairs(call, values, stream)
    compared.append(("grad.up_v", sum_over_ranks(grad_or_zero(call.up_v), groups), _up_v(streams)))
    compared += _cut_off(call)
    if call.parameters:
        compared += parameter_pairs(call, streams, scenario, pack, groups)
    if loss is not None:
        own = [values.rank.loss for values in streams]
        due = batch_loss(own, loss)
        found = observed_loss(recorder, site.layer)
        found = torch.zeros_like(due.value) if found is None else found.to(due.value.dtype)
        compared.append(("indexer_loss", found, due))
    records = [
        compare_expected(name, actual, due, dtype=dtype, tolerances=tolerances).evidence(site)
        for name, actual, due in compared
    ]
    return Judgement(
        records=records,
        due={name: due for name, _actual, due in compared},
        loss=None if loss is None else batch_loss([v.loss for v in streams], loss),
    )


def loss_spec(scenario: Scenario, microbatch: int, *, streams: int = 1) -> LossSpec | None:
    """Return the indexer loss of one stream of a microbatch, None where it is off."""
    training = scenario.training
    if loss_mode(scenario) == "off":
        return None
    reduction = LossReduction.SUM if training.calculate_per_token_loss else LossReduction.RANK_MEAN
    masked = scenario.microbatches[microbatch].real_token_mask_q
    return LossSpec(
        coeff=training.dsa_indexer_loss_coeff,
        sparse=training.dsa_indexer_use_sparse_loss,
        reduction=reduction,
        counted=CountedRows.REAL if masked else CountedRows.ALL,
        # The mean over a batch of equal streams is the mean of their means.
        backward_scale=1.0 / streams if reduction == LossReduction.RANK_MEAN else 1.0,
        relu=scenario.model.dsa_indexer_scoring_relu,
    )


def _stream_values(
    call: TrainedCall,
    picks: torch.Tensor,
    scenario: Scenario,
    pack: Pack,
    groups: Groups,
    loss: LossSpec | None,
    stream: int,
) -> OwnValues:
    """What this rank should yield for one stream, heads of its tensor-parallel rank alone.

    The loss is the exception: its target sums over the heads of all tensor-parallel ranks.
    """
    attention, indexer = _operands(call, scenario, pack, groups, stream)
    heads = scenario.model.num_attention_heads // groups.tp_size
    upstream = unwrap(call.given)[:, stream].reshape(-1, heads, scenario.model.v_head_dim)
    if groups.tp_size == 1 or loss is None:
        return own_values(attention, indexer, picks, pack, groups, loss=loss, upstream=upstream)
    own = own_values(attention, None, picks, pack, groups, loss=None, upstream=upstream)
    # Values stay with a rank's heads, and the target needs none.
    query = gather_shards(attention.query, groups, dim=1)
    every = replace(attention, query=query, up_v=None)
    other = own_values(every, indexer, picks, pack, groups, loss=loss, upstream=None)
    return with_loss(own, other)


def _operands(
    call: TrainedCall, scenario: Scenario, pack: Pack, groups: Groups, stream: int
) -> tuple[AttentionOperands, Operands | None]:
    """Local rows of one stream, and all keys of the group in packed order."""
    model = scenario.model

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return unwrap(tensor)[:, stream]

    def keys(tensor: torch.Tensor) -> torch.Tensor:
        return to_packed_order(torch.cat(gather_rows(rows(tensor), groups)), pack)

    attention = AttentionOperands(
        query=rows(sbhd(call.query)),
        key=keys(sbhd(call.key))[:, 0],
        softmax_scale=(model.qk_head_dim + model.qk_pos_emb_head_dim) ** -0.5,
        up_v=unwrap(call.up_v),
        latent_dim=model.kv_lora_rank,
    )
    if not call.indexer:
        return attention, None
    q_indexer, k_indexer, weights = call.indexer
    indexer = Operands(q=rows(q_indexer), k=keys(k_indexer), w=rows(weights))
    return attention, indexer


def _pairs(
    call: TrainedCall, values: OwnValues, stream: int
) -> Iterator[tuple[str, torch.Tensor, Expected]]:
    """(name, what the build computed, what is due) for one stream of this rank."""
    rank, own_keys = values.rank, values.keys
    due = {
        "attention_output": rank.output,
        "grad.query": rank.grad_query,
        "grad.key": own_keys.key,
        "grad.q_indexer": rank.grad_q_indexer,
        "grad.k_indexer": own_keys.k_indexer,
        "grad.weights": rank.grad_weights,
    }
    for name, found in (call.of_rows() | call.of_keys()).items():
        expected = due[name]
        if expected is not None:
            yield name, found[:, stream].reshape(expected.value.shape), expected


def _up_v(streams: list[OwnValues]) -> Expected:
    """Gradient of the value projection, summed over ranks and streams."""
    return sum_partials(v.keys.up_v for v in streams if v.keys.up_v is not None)


def _cut_off(call: TrainedCall) -> Iterator[tuple[str, torch.Tensor, Expected]]:
    """Nothing of the indexer's loss flows back to what went into it; leaves can tell."""
    for name, tensor in (("grad.hidden_states", call.hidden), ("grad.low_rank", call.low_rank)):
        if tensor is not None and tensor.requires_grad and tensor.is_leaf:
            zero = torch.zeros(tensor.shape)
            yield name, grad_or_zero(tensor), Expected(value=zero, scale=zero)


def batch_loss(losses: Sequence[Expected | None], loss: LossSpec) -> Expected:
    """Loss of a batch from those of its equal streams: their sum or their mean."""
    parts = [part for part in losses if part is not None]
    share = len(parts) if loss.reduction == LossReduction.RANK_MEAN else 1
    return Expected(
        value=torch.stack([part.value for part in parts]).sum() / share,
        scale=torch.stack([part.scale for part in parts]).sum() / share,
        length=sum(part.length for part in parts),
    )


_LOSS_PLACES = {"dispatch_attention": 1, "dispatch_topk_loss": 2, "naive_topk_loss": 1}
"""Hook symbol to the place of the indexer loss in its result."""


def observed_loss(recorder: Recorder, layer: int) -> torch.Tensor | None:
    """The indexer loss of a layer's last scorer that returned one, a scalar outside any graph."""
    found = None
    for call in recorder.calls:
        place = _LOSS_PLACES.get(call.symbol)
        if call.layer != layer or place is None:
            continue
        if call.returned and call.result is not None:
            found = unwrap(call.result[place]).detach()
    return found
