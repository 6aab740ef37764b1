"""Level ``kernel`` on one rank: a wrapper called on its own, against the independent reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from harness.evidence.calls import kernel_calls
from harness.evidence.collect import silent_accesses
from harness.production.kernel_call import (
    CallCase,
    call_attention_backward,
    call_case,
    call_indexer_backward,
    call_score_recompute,
)
from harness.record.evidence import Evidence, ValueEvidence
from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.record.selection import SelectionEvidence
from harness.reference.attention import AttentionReference
from harness.reference.call_values import (
    SlotProbabilities,
    attention_slot_values,
    indexer_slot_gradients,
    slot_probabilities,
    target_probabilities,
)
from harness.reference.expected import compare_expected
from harness.reference.tolerances import load_tolerances
from harness.runtime.cases import Case, begin, cases, kernels, site_of
from harness.runtime.engine import Stage
from harness.runtime.level_scoring_call import SCORING_OPERATIONS, Value

Values = Iterator[Value]


def run_kernel_level(stage: Stage) -> None:
    """Run every case as one call of the scenario's wrapper."""
    scenario = stage.task.scenario
    wrapper = scenario.kernel_call.wrapper
    assert wrapper is not None, "the file checks ask level kernel for a wrapper"
    for case in cases(scenario):
        begin(stage, case, 0)
        found: list[Value | SelectionEvidence] = []
        if wrapper in SCORING_OPERATIONS:
            with kernels(stage, case), torch.no_grad():
                found += SCORING_OPERATIONS[wrapper](stage, case)
        else:
            arguments = call_case(scenario, case.sources, case.spec.sequences[0])
            stage.journal.phase(Phase.ATTEND)
            with kernels(stage, case), torch.no_grad():
                found += _OPERATIONS[wrapper](stage, arguments)
        stage.journal.phase(Phase.COMPARE)
        picked = [item for item in found if isinstance(item, SelectionEvidence)]
        _conclude(stage, case, [item for item in found if isinstance(item, tuple)], picked)


def _conclude(
    stage: Stage, case: Case, values: list[Value], picked: list[SelectionEvidence]
) -> None:
    site = site_of(stage, case, 0)
    tolerances = load_tolerances()
    found: list[ValueEvidence] = [
        compare_expected(
            name, actual, due, dtype=stage.task.scenario.values.dtype, tolerances=tolerances
        ).evidence(site)
        for name, actual, due in values
    ]
    stage.journal.phase(Phase.RECORD)
    evidence: list[Evidence] = [*kernel_calls(stage.recorder, site), _path(stage, case)]
    for record in (*evidence, *silent_accesses(stage.recorder), *picked, *found):
        stage.journal.evidence(record)


def _path(stage: Stage, case: Case) -> PathEvidence:
    """No plan is chosen: the wrapper was called, and nothing else."""
    wrapper = str(stage.task.scenario.kernel_call.wrapper)
    return PathEvidence(
        **site_of(stage, case, 0).fields(),
        backend=stage.task.scenario.kernels.dsa_kernel_backend,
        plan="none",
        plan_source="inferred",
        reason="a kernel wrapper was called on its own",
        scorer=wrapper,
        fused=bool(stage.recorder.of(wrapper)),
        calls=stage.recorder.counts(),
    )


def _indexer_backward(stage: Stage, case: CallCase) -> Values:
    spec = stage.task.scenario.kernel_call
    given = [
        slot_probabilities(case.query[b], case.key[b], _indexer(case, b), ids, case.scale)
        for b, ids in enumerate(case.selection)
    ]
    target = torch.stack([part.target for part in given])
    predict = torch.stack([part.predict for part in given])
    result = call_indexer_backward(spec, case, stage.source, target.clone(), predict.clone())
    rows = target.size(0) * target.size(1)
    for b in range(case.batch):
        due = indexer_slot_gradients(
            _indexer(case, b),
            SlotProbabilities(target=target[b], predict=predict[b]),
            case.counted[b],
            1.0 / rows,
        )
        place = _place(case, b)
        yield f"grad.q_indexer{place}", result["d_index_q"][b], due.queries
        yield f"grad.weights{place}", result["d_weights"][b], due.weights
        yield f"grad.k_indexer{place}", result["d_index_k"][b], due.keys


def _score_recompute(stage: Stage, case: CallCase) -> Values:
    spec = stage.task.scenario.kernel_call
    forward = [_attention(case, b, case.selection[b]) for b in range(case.batch)]
    lse = torch.stack([values.lse.float() for values in forward])
    result = call_score_recompute(spec, case, stage.source, lse)
    for b in range(case.batch):
        due = target_probabilities(case.query[b], case.key[b], case.counted[b], case.scale, lse[b])
        yield f"score_target{_place(case, b)}", result["target"][b], due


def _attention_backward(stage: Stage, case: CallCase) -> Values:
    forward = [_attention(case, b, case.counted[b]) for b in range(case.batch)]
    out = torch.stack([values.output.value for values in forward]).to(case.query.dtype)
    # FlashMLA writes +inf for a row without keys.
    lse = torch.stack([values.lse.float() for values in forward])
    lse = torch.where(torch.isneginf(lse), torch.inf, lse)
    result = call_attention_backward(case, stage.source, out, lse)
    for b, values in enumerate(forward):
        assert values.grad_query is not None, "an upstream gradient was given"
        assert values.grad_key is not None, "an upstream gradient was given"
        yield f"grad.query{_place(case, b)}", result["dq"][b], values.grad_query
        yield f"grad.key{_place(case, b)}", result["dkv"][b], values.grad_key


def _attention(case: CallCase, batch: int, selection: torch.Tensor) -> AttentionReference:
    return attention_slot_values(
        case.query[batch], case.key[batch], selection, case.grad_output[batch], case.scale
    )


def _indexer(case: CallCase, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, weights = case.indexer
    return q[batch], k[batch], weights[batch]


def _place(case: CallCase, batch: int) -> str:
    """Entries of a batch are judged one by one: a fault mostly hits one of them."""
    return "" if case.batch == 1 else f".batch{batch}"


_OPERATIONS: dict[str, Callable[[Stage, CallCase], Values]] = {
    "indexer_backward": _indexer_backward,
    "sparse_attn_score_recompute": _score_recompute,
    "sparse_attention_backward": _attention_backward,
}
