"""Scorer inputs of a wrong selection, kept on disk so that it can be looked at without the machine.

A rank writes ``q``, ``k``, ``w`` and the picks of a case that it judged wrong into ``dumps/`` of
the run folder, within a byte budget of its own. What is known of the build, expected, or comes from
a model is left out, since it can be had again anywhere. Faults of an address leave nothing to dump:
their inputs follow from the scenario and its seed. Read a file with
``torch.load(path, weights_only=True)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from harness.evidence.observation import ScorerObservation, observe_scorer
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.record.codec import dumps
from harness.record.evidence import Evidence, NoteEvidence
from harness.record.files import safe_name
from harness.record.result import FactValue
from harness.record.selection import SelectionEvidence
from harness.record.verdict import Verdict
from harness.runtime.engine import Stage
from harness.scenario.known import VERSIONED, EffectiveBuild, matching_rule
from harness.scenario.spec import Scenario

TOPIC = "dump"
"""Topic of the notes that name a dump, or say why there is none."""

_WRONG = (Verdict.WRONG_SELECTION, Verdict.OUT_OF_BOUNDS)


def dump_records(stage: Stage, pack: Pack, evidence: Iterable[Evidence]) -> Iterator[NoteEvidence]:
    """Dump the wrong cases among the evidence just made, and yield a note on each.

    Args:
        stage: The rank's stage.
        pack: Layout of the microbatch.
        evidence: What the case showed.
    """
    task = stage.task
    if not task.dump_bytes or not (task.dump_all or _asks(task.scenario, stage.facts)):
        return
    wrong: dict[int, SelectionEvidence] = {}
    for item in evidence:
        if isinstance(item, SelectionEvidence) and _is_wrong(item):
            wrong.setdefault(item.layer, item)
    for layer, item in wrong.items():
        observation = observe_scorer(stage.recorder, layer)
        if observation is not None:
            yield _dump(stage, pack, observation, item)


def _is_wrong(item: SelectionEvidence) -> bool:
    return bool(item.total.num_wrong or item.total.num_out_of_bounds)


def _asks(scenario: Scenario, facts: dict[str, FactValue]) -> bool:
    """Tell whether a wrong selection would be a hardware verdict that nobody expects."""
    if facts.get("source") != "hardware" or scenario.expect.verdict in _WRONG:
        return False
    rest = dict(facts)
    versions = {name: _text(rest.pop(name, None)) for name in VERSIONED}
    build = EffectiveBuild(
        facts=rest,
        versions=versions,
        arch=_text(rest.pop("arch", None)) or "",
        source=_text(rest.pop("source", None)) or "",
        overlays=scenario.overlays,
    )
    rule = matching_rule(scenario.known, build)
    return rule is None or rule.verdict not in _WRONG


def _text(value: FactValue) -> str | None:
    return None if value is None else str(value)


def _dump(
    stage: Stage, pack: Pack, observation: ScorerObservation, item: SelectionEvidence
) -> NoteEvidence:
    task = stage.task
    folder = Path(task.folder).parents[2] / "dumps"
    prefix = f"{safe_name(task.scenario.id)}-{task.attempt}-rank{task.global_rank}-"
    place = f"cp{item.cp_rank}-mb{item.microbatch}-layer{item.layer}-seed{item.seed}.pt"
    left = task.dump_bytes - sum(path.stat().st_size for path in folder.glob(f"{prefix}*"))
    tensors = cut_to(left, observation, [row.row for row in item.worst_rows])
    where = f"dumps/{prefix}{place}"
    if tensors is None:
        return NoteEvidence(
            topic=TOPIC,
            text=f"{where}: left out, the keys alone take {_size(observation.k)} bytes of {left}; "
            "raise --dump-bytes",
        )
    about = {
        "scenario": task.scenario,
        "evidence": item,
        "layout": pack,
        "facts": stage.facts,
        "operations": stage.source.kernels,
    }
    try:
        folder.mkdir(exist_ok=True)
        temporary = folder / f".{prefix}{place}.tmp"
        torch.save({**tensors, "about": dumps(about)}, temporary)
        os.replace(temporary, folder / f"{prefix}{place}")
    except OSError as error:
        return NoteEvidence(topic=TOPIC, text=f"{where}: not written: {error}")
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
    return NoteEvidence(topic=TOPIC, text=f"{where}: {shapes}")


def cut_to(
    budget: int, observation: ScorerObservation, rows: list[int]
) -> dict[str, torch.Tensor] | None:
    """Return the tensors to keep on the CPU: all of them, or only the rows named.

    Args:
        budget: Bytes that they may take.
        observation: What was scored.
        rows: Local rows that matter most.

    Returns:
        ``q`` ``[batch, rows, heads, dim]``, ``k`` ``[batch, keys, dim]``, ``w``
        ``[batch, rows, heads]``, ``picks`` ``[batch, rows, topk]`` and, where rows were left out,
        ``rows``, the local rows that are there. None where not even the keys and one row fit.
    """
    by_row = {"q": observation.q, "w": observation.weights, "picks": observation.picks}
    total = sum(_size(tensor) for tensor in (*by_row.values(), observation.k))
    if total <= budget:
        return {name: _plain(tensor) for name, tensor in {**by_row, "k": observation.k}.items()}
    per_row = sum(_size(tensor[:, :1]) for tensor in by_row.values())
    fitting = sorted(set(rows))[: max(0, budget - _size(observation.k)) // max(1, per_row)]
    if not fitting:
        return None
    index = torch.tensor(fitting, device=observation.q.device)
    kept = {name: _plain(tensor.index_select(1, index)) for name, tensor in by_row.items()}
    return {**kept, "k": _plain(observation.k), "rows": index.cpu()}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain CPU tensor without a graph and with memory of its own."""
    return unwrap(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
