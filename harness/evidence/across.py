"""One run of a case against another run of the same tokens, at another CP size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from harness.evidence.case_values import SELECTED, CaseValues, Name, Scored
from harness.layout import Pack, expand_runs, key_runs
from harness.record.evidence import NoteEvidence, ValueEvidence
from harness.reference.group_values import local_rows
from harness.reference.operands import Operands
from harness.reference.rows import RowTable, rows_of_rank
from harness.reference.selection import judge_selection
from harness.reference.site import Site
from harness.reference.tolerances import Tolerances, load_tolerances
from harness.reference.values import compare_values
from harness.scenario.spec import Scenario

TIED = "rows that picked other keys of equal score"
"""Topic of the note on cases whose values are not comparable."""

_LOSSES = ("indexer_loss", "logged_loss", "lm_loss")


def compare_across(
    prefix: str,
    values: CaseValues,
    packed: CaseValues,
    *,
    scenario: Scenario,
    pack: Pack,
    site: Site,
    group: Any,
) -> Iterator[ValueEvidence | NoteEvidence]:
    """Hold this rank's values against another run's.

    Args:
        prefix: Of the names, such as ``cp1.``.
        values: Of this rank.
        packed: Of the other run, rows and keys in packed order.
        scenario: The scenario of this run.
        pack: Layout of this run.
        site: Where the values belong; layers are filled in.
        group: Harness group of all ranks that compare with the same run.
    """
    tied = torch.zeros(1, dtype=torch.int64)
    for name in values.rows:
        if name[1] == SELECTED:
            record, ties = _selection(name[0], values, packed, scenario, pack, site.cp_rank)
            tied += ties
            yield _named(record, prefix, name, site)
    dist.all_reduce(tied, group=group)
    if int(tied):
        text = f"{int(tied)} rows of microbatch {site.microbatch}; values are not compared"
        yield NoteEvidence(topic=f"{prefix}{TIED}", text=text)
        return
    yield from _values(prefix, values, packed, scenario.values.dtype, pack, site)


def _values(
    prefix: str, values: CaseValues, packed: CaseValues, dtype: str, pack: Pack, site: Site
) -> Iterator[ValueEvidence]:
    tolerances = load_tolerances()
    keys = torch.tensor(expand_runs(key_runs(pack, site.cp_rank)), dtype=torch.int64)
    for name, actual in values.rows.items():
        if name[1] != SELECTED:
            whole = packed.rows[name]
            record = _compared(
                name, actual, local_rows(whole, pack, site.cp_rank), whole, dtype, tolerances
            )
            yield _named(record, prefix, name, site)
    for name, actual in values.keys.items():
        whole = packed.keys[name]
        yield _named(
            _compared(name, actual, whole[keys], whole, dtype, tolerances), prefix, name, site
        )
    for name, actual in values.reduced.items():
        whole, scale = packed.reduced[name], values.scales.get(name)
        record = _compared(name, actual, whole, whole, dtype, tolerances, scale)
        yield _named(record, prefix, name, site)


def _compared(
    name: Name,
    actual: torch.Tensor,
    expected: torch.Tensor,
    whole: torch.Tensor,
    dtype: str,
    tolerances: Tolerances,
    scale: tuple[torch.Tensor, int] | None = None,
) -> ValueEvidence:
    """Compare with a bound in parts of the greatest magnitude over all ranks, and of ``scale``."""
    gradient = name[1].startswith("grad.")
    kind = "cp_grad" if gradient else "cp_loss" if name[1] in _LOSSES else "cp_value"
    bounds = tolerances.of(kind, dtype)
    atol: float | torch.Tensor = bounds.without_scale(whole)
    if scale is not None:
        size, length = scale
        atol = atol + (bounds.of_scale + bounds.of_scale_sqrt_length * length**0.5) * size
    return compare_values(
        name[1],
        actual,
        expected,
        atol=atol,
        rtol=bounds.rtol,
        reason=bounds.reason,
        gradient=gradient,
    ).evidence(Site(global_rank=0, cp_rank=0))


def _selection(
    layer: int,
    values: CaseValues,
    packed: CaseValues,
    scenario: Scenario,
    pack: Pack,
    cp_rank: int,
) -> tuple[ValueEvidence, int]:
    """Return how many rows attend to other keys, and how many others differ in ties alone."""
    table = rows_of_rank(pack, cp_rank)
    mine = values.rows[layer, SELECTED]
    other = local_rows(packed.rows[layer, SELECTED], pack, cp_rank)
    differs = (as_sets(mine) != as_sets(other)).any(-1)
    tied = torch.zeros_like(differs)
    scored = values.scored.get(scenario.model.source_layer(layer))
    if scored is not None and bool(differs.any()):
        for stream in range(differs.size(1)):
            rights = [
                right_rows(picks[:, stream], scored, stream, table, scenario)
                for picks in (mine, other)
            ]
            tied[:, stream] = differs[:, stream] & rights[0] & rights[1]
    real = table.valid.unsqueeze(1)
    wrong, num_tied = int((differs & ~tied & real).sum()), int((tied & real).sum())
    record = ValueEvidence(
        **Site(global_rank=0, cp_rank=0).fields(),
        name=SELECTED,
        gradient=False,
        max_abs_diff=float(wrong),
        max_rel_diff=wrong / max(1, differs.numel()),
        tolerance_abs=0.0,
        tolerance_rel=0.0,
        within=not wrong,
        reason="Rows with other keys; keys of equal score count as the same.",
    )
    return record, num_tied


def as_sets(picks: torch.Tensor) -> torch.Tensor:
    """Sort picks ``[rows, batch, topk]``, so that equal sets are equal tensors."""
    return picks.clamp_min(-1).sort(dim=-1).values


def right_rows(
    picks: torch.Tensor, scored: Scored, stream: int, table: RowTable, scenario: Scenario
) -> torch.Tensor:
    """Rows whose picks are right, ties understood; ``[rows]`` bool."""
    operands = Operands(
        q=scored.q[stream],
        k=scored.k[stream],
        w=scored.weights[stream],
        dtype=scenario.reference.dtype,
    )
    judged = judge_selection(picks, operands, table, topk=scenario.model.dsa_indexer_topk)
    right = torch.zeros(table.num_local_rows, dtype=torch.bool)
    right[table.row] = judged.right
    return right


def _named(record: ValueEvidence, prefix: str, name: Name, site: Site) -> ValueEvidence:
    return replace(record, **replace(site, layer=name[0]).fields(), name=f"{prefix}{record.name}")
