"""Values and gradients of one attention call against the independent reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from harness.evidence.observation import observe_scorer
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.production.groups import Groups, gather_rows
from harness.production.packs import to_packed_order
from harness.production.recorder import Recorder
from harness.record.evidence import ValueEvidence
from harness.reference.expected import Expected, compare_expected
from harness.reference.group_values import GroupInputs, GroupValues, group_values, packed_rows
from harness.reference.loss_terms import LossReduction, LossSpec
from harness.reference.site import Site
from harness.reference.tolerances import Tolerances, load_tolerances
from harness.reference.values import ValueComparison
from harness.scenario.rules.expectations import loss_mode
from harness.scenario.spec import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedCall:
    """Tensors of one DSAttention call whose backward has run.

    Attributes:
        query: ``[rows, batch, heads, 576]``, or ``[rows, heads, 576]``; gradient retained.
        key: ``[rows, batch, 1, 576]``, or ``[rows, 1, 576]``, local; gradient retained.
        indexer: ``q [rows, batch, heads, dim]``, ``k [rows, batch, dim]``, ``weights [rows, batch,
            heads]`` of the indexer, local, with their gradients retained.
        output: ``[rows, batch, heads * v_head_dim]``.
        upstream: Gradient given to the output.
        up_v: ``[heads, v_head_dim, 512]``.
    """

    query: torch.Tensor
    key: torch.Tensor
    indexer: tuple[torch.Tensor, ...]
    output: torch.Tensor
    upstream: torch.Tensor
    up_v: torch.Tensor


def training_values(
    recorder: Recorder,
    call: TrainedCall,
    scenario: Scenario,
    pack: Pack,
    groups: Groups,
    site: Site,
) -> Iterator[ValueEvidence]:
    """Compare output, loss and gradients of one rank with what the group should yield.

    The reference gets the build's own inputs and picks, gathered by the harness, so that selection
    and attention are judged apart.
    """
    observation = observe_scorer(recorder, site.layer)
    if observation is None:
        return
    tolerances = load_tolerances()
    dtype = scenario.values.dtype
    loss = _loss_spec(scenario)
    expected = []
    for stream in range(call.output.size(1)):
        inputs, upstream = _gathered(call, scenario, pack, groups, stream)
        picks = gather_rows(observation.picks[stream], groups)
        values = group_values(inputs, pack, picks, loss=loss, grad_output=upstream)
        expected.append(values)
        for name, actual, due in _pairs(call, values, groups, stream):
            yield compare_expected(name, actual, due, dtype=dtype, tolerances=tolerances).evidence(
                site
            )
    if loss is not None:
        yield _loss_value(recorder, expected, groups, site, dtype, tolerances).evidence(site)


def _loss_spec(scenario: Scenario) -> LossSpec | None:
    training = scenario.training
    if loss_mode(scenario) == "off":
        return None
    reduction = LossReduction.SUM if training.calculate_per_token_loss else LossReduction.RANK_MEAN
    return LossSpec(
        coeff=training.dsa_indexer_loss_coeff,
        sparse=training.dsa_indexer_use_sparse_loss,
        reduction=reduction,
        relu=scenario.model.dsa_indexer_scoring_relu,
    )


def _gathered(
    call: TrainedCall, scenario: Scenario, pack: Pack, groups: Groups, stream: int
) -> tuple[GroupInputs, torch.Tensor]:
    """Inputs of the whole group for one stream, in packed order, and its upstream gradient."""
    model = scenario.model

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return packed_rows(gather_rows(unwrap(tensor)[:, stream], groups), pack)

    def keys(tensor: torch.Tensor) -> torch.Tensor:
        gathered = torch.cat(gather_rows(unwrap(tensor)[:, stream], groups))
        return to_packed_order(gathered, pack)

    q_indexer, k_indexer, weights = call.indexer
    inputs = GroupInputs(
        query=rows(_sbhd(call.query)),
        key=keys(_sbhd(call.key))[:, 0],
        softmax_scale=(model.qk_head_dim + model.qk_pos_emb_head_dim) ** -0.5,
        up_v=call.up_v,
        q_indexer=rows(q_indexer),
        k_indexer=keys(k_indexer),
        weights=rows(weights),
    )
    shape = (-1, model.num_attention_heads, model.v_head_dim)
    return inputs, rows(call.upstream).reshape(shape)


def _sbhd(tensor: torch.Tensor) -> torch.Tensor:
    """View a packed ``[rows, heads, dim]`` query or key with a batch dimension of one."""
    return tensor.unsqueeze(1) if tensor.dim() == 3 else tensor


def _pairs(
    call: TrainedCall, values: GroupValues, groups: Groups, stream: int
) -> Iterator[tuple[str, torch.Tensor, Expected]]:
    """(name, what the build computed, what is due) for one stream of this rank."""
    rank, own_keys = values.ranks[groups.cp_rank], values.local_keys(groups.cp_rank)
    q_indexer, k_indexer, weights = call.indexer
    output = unwrap(call.output)[:, stream]
    wanted: list[tuple[str, torch.Tensor | None, Expected | None]] = [
        ("attention_output", output.reshape(rank.output.value.shape), rank.output),
        ("grad.query", _absorbed_grad(call.query, stream), rank.grad_query),
        ("grad.key", _first_head(_absorbed_grad(call.key, stream)), own_keys.key),
        ("grad.q_indexer", _grad(q_indexer, stream), rank.grad_q_indexer),
        ("grad.k_indexer", _grad(k_indexer, stream), own_keys.k_indexer),
        ("grad.weights", _grad(weights, stream), rank.grad_weights),
    ]
    for name, actual, due in wanted:
        if due is None:
            continue
        # A gradient that never arrived counts as zero: the comparison says how far off that is.
        yield name, torch.zeros_like(due.value) if actual is None else actual, due


def _grad(tensor: torch.Tensor, stream: int) -> torch.Tensor | None:
    return None if tensor.grad is None else unwrap(tensor.grad)[:, stream]


def _absorbed_grad(tensor: torch.Tensor, stream: int) -> torch.Tensor | None:
    return None if tensor.grad is None else _sbhd(unwrap(tensor.grad))[:, stream]


def _first_head(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else grad[:, 0]


def _loss_value(
    recorder: Recorder,
    expected: list[GroupValues],
    groups: Groups,
    site: Site,
    dtype: str,
    tolerances: Tolerances,
) -> ValueComparison:
    """This rank's indexer loss as the build reports it; a batch averages its equal streams."""
    losses = [values.ranks[groups.cp_rank].loss for values in expected]
    parts = [loss for loss in losses if loss is not None]
    mean = Expected(
        value=torch.stack([part.value for part in parts]).mean(),
        scale=torch.stack([part.scale for part in parts]).mean(),
        length=sum(part.length for part in parts),
    )
    actual = observed_loss(recorder, site.layer)
    found = torch.zeros_like(mean.value) if actual is None else actual.to(mean.value.dtype)
    return compare_expected("indexer_loss", found, mean, dtype=dtype, tolerances=tolerances)


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
            found = unwrap(call.result[place])
    return found
