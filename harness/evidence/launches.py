"""Launch evidence: the selection of a further forward against the first one's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.evidence.across import as_sets, right_rows
from harness.evidence.case_values import Scored
from harness.evidence.observation import observe_scorer
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.production.recorder import Recorder
from harness.record.launches import LaunchEvidence
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site
from harness.scenario.spec import Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """What one layer of a launch selected and put out.

    Attributes:
        picks: ``[batch, rows, topk]`` int64.
        scored: Operands of the scorer.
        output: ``[rows, ...]`` of the attention, None at level ``scorer``.
        calls: Calls of the scoring kernel.
        gap: Greatest difference of gradients between two trainings, None where nothing is trained.
    """

    picks: torch.Tensor
    scored: Scored
    output: torch.Tensor | None
    calls: int
    gap: float | None = None


def launched(recorder: Recorder) -> dict[int, Launched]:
    """What the recorder saw of each layer that scored."""
    found = {}
    for layer in sorted({call.layer for call in recorder.calls}):
        observation = observe_scorer(recorder, layer)
        if observation is None:
            continue
        outputs = [call for call in recorder.of("attention", layer=layer) if call.returned]
        found[layer] = Launched(
            picks=observation.picks,
            scored=Scored(q=observation.q, k=observation.k, weights=observation.weights),
            output=unwrap(outputs[-1].result).clone() if outputs else None,
            calls=len(recorder.of("indexer_forward", layer=layer)),
        )
    return found


def launch_evidence(
    launch: str, first: Launched, other: Launched, *, scenario: Scenario, pack: Pack, site: Site
) -> LaunchEvidence:
    """Compare one layer of two launches over the real rows of a rank."""
    table = rows_of_rank(pack, site.cp_rank)
    width = max(first.picks.size(-1), other.picks.size(-1))
    mine, theirs = (as_sets(_wide(each.picks, width)) for each in (first, other))
    real = torch.zeros(table.num_local_rows, dtype=torch.bool)
    real[table.row] = table.valid
    differs = (mine != theirs).any(-1) & real
    tied = torch.zeros_like(differs)
    if bool(differs.any()):
        for stream in range(differs.size(0)):
            rights = [
                right_rows(picks[stream], first.scored, stream, table, scenario)
                for picks in (first.picks, _wide(other.picks, first.picks.size(-1)))
            ]
            tied[stream] = differs[stream] & rights[0] & rights[1]
    wrong = (differs & ~tied).any(0).nonzero().flatten()
    compared = first.output is not None and other.output is not None and not bool(differs.any())
    difference = 0.0
    if compared:
        assert first.output is not None
        assert other.output is not None
        gap = (first.output.float() - other.output.float())[real]
        difference = float(gap.abs().max()) if gap.numel() else 0.0
    return LaunchEvidence(
        **site.fields(),
        launch=launch,
        rows=int(real.sum()) * differs.size(0),
        rows_different=int(differs.sum()),
        rows_tied=int(tied.sum()),
        first_different=int(wrong[0]) if wrong.numel() else None,
        calls=(first.calls, other.calls),
        output_compared=compared,
        output_difference=difference,
        gradient_difference=other.gap,
    )


def _wide(picks: torch.Tensor, width: int) -> torch.Tensor:
    """Fill rows up with empty slots: a short pack has fewer keys than top-k slots."""
    missing = max(0, width - picks.size(-1))
    return torch.nn.functional.pad(picks, (0, missing), value=-1)
