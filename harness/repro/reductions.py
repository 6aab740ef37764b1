"""All ways to make a scenario smaller, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from harness.layout import padded_length
from harness.repro import reduce_model, reduce_packs
from harness.repro.reduce_model import DIMENSIONS
from harness.repro.reduce_packs import LEVELS, Candidates, cp_of
from harness.scenario.call_spec import PerturbSpec
from harness.scenario.spec import (
    CompareSpec,
    ExpectSpec,
    GraphSpec,
    MicrobatchSpec,
    Scenario,
    TrainingSpec,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """One way to make a scenario smaller.

    Attributes:
        name: What is reduced, as the closing table names it.
        show: Its value in a scenario, for people.
        candidates: Yields (what is tried, scenario), boldest first.
    """

    name: str
    show: Callable[[Scenario], str]
    candidates: Callable[[Scenario], Candidates]


def _numbers(scenario: Scenario) -> str:
    return " ".join(str(len(pack.sequences)) for pack in scenario.microbatches)


def _tokens(scenario: Scenario) -> str:
    return " ".join(str(sum(pack.sequences)) for pack in scenario.microbatches)


def _pads(scenario: Scenario) -> str:
    return " ".join(str(_pad(pack, cp_of(scenario, pack))) for pack in scenario.microbatches)


def _pad(pack: MicrobatchSpec, cp_size: int) -> int:
    """Rows beyond those that the sequences need."""
    if not isinstance(pack.padded, tuple):
        return pack.tail_padding
    due = sum(padded_length(length, cp_size) for length in pack.sequences)
    return pack.tail_padding + sum(pack.padded) - due


def _differing(value: Any, default: Any) -> str:
    names = [
        item.name
        for item in fields(default)
        if getattr(value, item.name) != getattr(default, item.name)
    ]
    return ", ".join(names) or "none"


def _extras_shown(scenario: Scenario) -> str:
    plain = {
        "compare": CompareSpec(),
        "graph": GraphSpec(),
        "overlays": (),
        "perturb": PerturbSpec(),
    }
    names = [name for name, default in plain.items() if getattr(scenario, name) != default]
    return ", ".join(names) or "none"


def _show_dimensions(scenario: Scenario) -> str:
    return " ".join(str(getattr(scenario.model, name)) for name in DIMENSIONS[:8])


def _show_options(scenario: Scenario) -> str:
    packs = scenario.microbatches
    plain = [MicrobatchSpec(sequences=p.sequences, padded=p.padded, cp=p.cp) for p in packs]
    names = {
        name
        for pack, default in zip(packs, plain, strict=True)
        for name in _differing(pack, default).split(", ")
        if name not in ("none", "tail_padding")
    }
    return ", ".join(sorted(names)) or "plain"


REDUCTIONS = tuple(
    Reduction(name=name, show=show, candidates=candidates)
    for name, candidates, show in (
        (
            "expectations",
            reduce_model.expectations_reduced,
            lambda s: _differing(s.expect, ExpectSpec()),
        ),
        ("level", reduce_packs.levels_reduced, lambda s: s.level),
        ("microbatches", reduce_packs.microbatches_reduced, lambda s: str(len(s.microbatches))),
        (
            "CP ranks run",
            reduce_packs.logical_ranks_reduced,
            lambda s: str(len(s.logical_cp_ranks)),
        ),
        (
            "CP size",
            reduce_packs.cp_reduced,
            lambda s: str(s.parallel.context_parallel_size),
        ),
        (
            "TP size",
            reduce_packs.tensor_parallel_reduced,
            lambda s: str(s.parallel.tensor_model_parallel_size),
        ),
        (
            "Dynamic CP",
            reduce_packs.dynamic_reduced,
            lambda s: str(s.parallel.dynamic_context_parallel).lower(),
        ),
        ("sequences", reduce_packs.sequences_reduced, _numbers),
        (
            "seeds and values",
            reduce_model.seeds_reduced,
            lambda s: f"{len(s.values.seeds)} {s.values.scores}",
        ),
        (
            "training",
            reduce_model.training_reduced,
            lambda s: _differing(s.training, TrainingSpec()),
        ),
        ("schedule", reduce_packs.steps_reduced, lambda s: " ".join(s.schedule or ("default",))),
        ("extras", reduce_model.extras_reduced, _extras_shown),
        ("planted faults", reduce_model.planted_reduced, lambda s: str(len(s.inject))),
        ("top-k", reduce_model.topk_reduced, lambda s: str(s.model.dsa_indexer_topk)),
        ("layers", reduce_model.layers_reduced, lambda s: str(s.model.num_layers)),
        ("tokens", reduce_packs.lengths_reduced, _tokens),
        ("padding", reduce_packs.padding_reduced, _pads),
        ("packs", reduce_packs.pack_options_reduced, _show_options),
        ("dimensions", reduce_model.dimensions_reduced, _show_dimensions),
    )
)
"""In the order in which they are tried; cheap runs come from the first ones."""


def cost(scenario: Scenario) -> tuple[int, ...]:
    """How large a case is: ranks before packs, packs before sizes of the model."""
    model, packs = scenario.model, scenario.microbatches
    parallel = scenario.parallel
    logical = len(scenario.logical_cp_ranks) if scenario.level == "scorer" else 0
    return (
        scenario.num_ranks,
        LEVELS.index(scenario.level) if scenario.level in LEVELS else 0,
        len(packs),
        logical,
        parallel.context_parallel_size,
        sum(len(pack.sequences) for pack in packs),
        sum(sum(pack.sequences) for pack in packs),
        model.dsa_indexer_topk,
        model.num_layers,
        sum(getattr(model, name) for name in DIMENSIONS),
    )
