"""Smaller scenarios by model, training and what else is asked of a run; nothing is run here."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from harness.repro.reduce_packs import Candidates
from harness.repro.reshape import ladder, subsets
from harness.scenario.call_spec import KernelCallSpec, PerturbSpec
from harness.scenario.model_files import ModelLibrary
from harness.scenario.spec import (
    CompareSpec,
    ExpectSpec,
    GraphSpec,
    ModelSpec,
    Scenario,
    TrainingSpec,
)


def seeds_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer seeds, and plain values."""
    values = scenario.values
    found: list[tuple[int, ...]] = [(0,)] if values.seeds != (0,) else []
    found += [tuple(values.seeds[i] for i in kept) for kept in subsets(len(values.seeds))]
    for seeds in found:
        text = f"seeds {list(seeds)}"
        yield text, replace(scenario, values=replace(values, seeds=seeds))
    if values.scores != "normal":
        yield "normal scores", replace(scenario, values=replace(values, scores="normal"))


def training_reduced(scenario: Scenario) -> Candidates:
    """Yield less of the training step, down to a forward alone."""
    training = scenario.training
    if training == TrainingSpec():
        return
    schedule = scenario.schedule
    if schedule is not None:
        schedule = tuple(step for step in schedule if step[0] == "F")
    packs = tuple(replace(pack, forward_only=False) for pack in scenario.microbatches)
    yield (
        "no training",
        replace(scenario, training=TrainingSpec(), schedule=schedule, microbatches=packs),
    )
    for item in fields(TrainingSpec):
        default = getattr(TrainingSpec(), item.name)
        if item.name != "backward" and getattr(training, item.name) != default:
            changed = replace(training, **{item.name: default})
            yield f"training.{item.name} {default}", replace(scenario, training=changed)


def extras_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer comparisons, graphs, overlays and the like."""
    defaults: dict[str, Any] = {
        "compare": CompareSpec(),
        "graph": GraphSpec(),
        "overlays": (),
        "perturb": PerturbSpec(),
    }
    if scenario.level != "kernel":
        defaults["kernel_call"] = KernelCallSpec()
    for name, default in defaults.items():
        if getattr(scenario, name) != default:
            yield f"without {name}", replace(scenario, **{name: default})
    kernels = scenario.kernels
    if kernels.score_chunk_bytes is not None:
        changed = replace(kernels, score_chunk_bytes=None)
        yield "without score_chunk_bytes", replace(scenario, kernels=changed)
    if scenario.reference.rows != "all":
        rows = replace(scenario.reference, rows="all")
        yield "all rows judged", replace(scenario, reference=rows)


def planted_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer planted faults."""
    for kept in [(), *subsets(len(scenario.inject))] if scenario.inject else []:
        some = tuple(scenario.inject[index] for index in kept)
        yield f"planted {', '.join(some) or 'nothing'}", replace(scenario, inject=some)


def expectations_reduced(scenario: Scenario) -> Candidates:
    """Yield the verdict as the only expectation."""
    plain = ExpectSpec(verdict=scenario.expect.verdict)
    if scenario.expect != plain:
        yield "no expectation but the verdict", replace(scenario, expect=plain)


DIMENSIONS = (
    "hidden_size",
    "ffn_hidden_size",
    "vocab_size",
    "num_attention_heads",
    "q_lora_rank",
    "v_head_dim",
    "qk_head_dim",
    "dsa_indexer_n_heads",
    "kv_lora_rank",
    "qk_pos_emb_head_dim",
    "dsa_indexer_head_dim",
)
SMALL = {
    "hidden_size": 64,
    "ffn_hidden_size": 64,
    "vocab_size": 64,
    "num_attention_heads": 16,
    "q_lora_rank": 32,
    "v_head_dim": 16,
    "qk_head_dim": 16,
}
"""Dimensions at which every level still runs, fused kernels included."""
_OF_SCORER = ("dsa_indexer_n_heads", "dsa_indexer_head_dim")
"""All that level ``scorer`` takes from a model, top-k left out."""
_FLOOR = 8
"""Smaller dimensions save nothing."""


def with_model(scenario: Scenario, **changes: Any) -> Scenario:
    """Return a scenario with some fields of the model changed."""
    name = scenario.model.name.removesuffix("+") + "+"
    return replace(scenario, model=replace(scenario.model, **{"name": name, **changes}))


def with_small_model(scenario: Scenario) -> Scenario:
    """Return a scenario whose dimensions are ``SMALL`` where they were larger."""
    model = scenario.model
    changes = {name: min(size, getattr(model, name)) for name, size in SMALL.items()}
    changes = {name: size for name, size in changes.items() if size != getattr(model, name)}
    return with_model(scenario, **changes) if changes else scenario


def topk_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer picks per row."""
    for smaller in ladder(scenario.model.dsa_indexer_topk):
        yield f"dsa_indexer_topk {smaller}", with_model(scenario, dsa_indexer_topk=smaller)


def layers_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer layers, and picks that no layer shares."""
    # Only level model builds more than one.
    for smaller in ladder(scenario.model.num_layers):
        yield f"num_layers {smaller}", with_model(scenario, num_layers=smaller)
    plain = ModelSpec(name="")
    for name in ("dsa_indexer_topk_freq", "dsa_indexer_skip_topk_offset"):
        default = getattr(plain, name)
        if getattr(scenario.model, name) != default:
            yield f"{name} {default}", with_model(scenario, **{name: default})


def dimensions_reduced(scenario: Scenario) -> Candidates:
    """Yield smaller dimensions, all together and one by one."""
    small = with_small_model(scenario)
    if small != scenario:
        yield "small dimensions", small
    for name in _OF_SCORER if scenario.level == "scorer" else DIMENSIONS:
        for smaller in ladder(getattr(scenario.model, name), least=_FLOOR):
            yield f"{name} {smaller}", with_model(scenario, **{name: smaller})


def plainer_model(scenario: Scenario) -> Candidates:
    """Yield the model that ships as ``small`` where the level builds no layers anyway.

    No reduction: it makes a case shorter to read, and is tried once.
    """
    if scenario.level != "scorer":
        return
    names = (*_OF_SCORER, "dsa_indexer_topk", "num_layers")
    kept = {name: getattr(scenario.model, name) for name in names}
    model = replace(ModelLibrary().get("small"), name="small+", **kept)
    if model != scenario.model:
        yield "model small", replace(scenario, model=model)
