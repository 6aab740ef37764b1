"""The levels of a scenario on one rank: what is constructed, what is fed in, what is collected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from harness.evidence.collect import Subject, collect
from harness.evidence.plants import plant
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.production.attention import (
    attention_inputs,
    build_attention,
    run_attention,
    up_v_weight,
)
from harness.production.backend import as_production, kernels_installed
from harness.production.config import transformer_config
from harness.production.errors import CapabilityMissingError
from harness.production.groups import Groups, model_parallel
from harness.production.inputs import InputSource
from harness.production.packs import to_packed_order
from harness.production.scorer import run_scorer, scorer_inputs
from harness.record.result import Phase
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site
from harness.runtime.engine import Stage
from harness.runtime.inject import for_rank
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario


def run_level(stage: Stage) -> None:
    """Run the scenario at its level.

    Raises:
        CapabilityMissingError: for a level or feature this version cannot drive.
    """
    scenario = stage.task.scenario
    _check_supported(scenario)
    if scenario.level == "scorer":
        _run_scorer_level(stage)
    else:
        _run_attention_level(stage)


def _check_supported(scenario: Scenario) -> None:
    training = scenario.training
    unsupported = {
        "level model": scenario.level == "model",
        "backward": training.backward or training.dsa_indexer_loss_coeff > 0,
        "recomputation": training.recompute != "none",
        "CUDA graphs": scenario.graph.cuda_graph_impl != "none",
        "Dynamic CP": scenario.parallel.dynamic_context_parallel,
        "tensor parallelism": scenario.parallel.tensor_model_parallel_size > 1,
        "schedules": scenario.schedule is not None,
    }
    for feature, asked in unsupported.items():
        if asked:
            raise CapabilityMissingError(f"support for {feature} in this version of the harness")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """One microbatch under one seed."""

    index: int
    seed: int
    spec: MicrobatchSpec
    pack: Pack
    sources: tuple[InputSource, ...]

    @property
    def packed(self) -> bool:
        return self.spec.qkv_format == "thd"


def _cases(scenario: Scenario) -> Iterator[_Case]:
    for seed in scenario.values.seeds:
        for index, spec in enumerate(scenario.microbatches):
            cp_size = spec.cp or scenario.parallel.context_parallel_size
            streams = 1 if spec.qkv_format == "thd" else len(spec.sequences)
            sources = tuple(
                InputSource(values=scenario.values, seed=seed, microbatch=index, stream=stream)
                for stream in range(streams)
            )
            pack = build_pack(spec, cp_size)
            yield _Case(index=index, seed=seed, spec=spec, pack=pack, sources=sources)


def _run_scorer_level(stage: Stage) -> None:
    task, recorder = stage.task, stage.recorder
    scenario = task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    for case in _cases(scenario):
        for cp_rank in task.cp_ranks:
            stage.journal.phase(Phase.LAYOUT)
            recorder.clear()
            _plant(stage, case, cp_rank)
            inputs = scorer_inputs(scenario.model, case.sources, case.pack, cp_rank)
            seen = replace(
                inputs,
                q=as_production(inputs.q, stage.source),
                k=as_production(inputs.k, stage.source),
                weights=as_production(inputs.weights, stage.source),
            )
            with _kernels(stage, case):
                run_scorer(
                    config,
                    seen,
                    case.pack,
                    cp_rank,
                    packed=case.packed,
                    explicit_key_positions=case.spec.key_positions == "explicit",
                )
            _collect(stage, case, cp_rank, inputs.k.transpose(0, 1))


def _run_attention_level(stage: Stage) -> None:
    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    with model_parallel(scenario.parallel) as groups:
        attention = build_attention(scenario, config, groups, stage.provider)
        up_v = up_v_weight(scenario.model, scenario.values.dtype)
        for case in _cases(scenario):
            stage.journal.phase(Phase.LAYOUT)
            stage.recorder.clear()
            _plant(stage, case, groups.cp_rank)
            inputs = _batched_inputs(stage, case, groups)
            with _kernels(stage, case), torch.no_grad():
                run_attention(attention, inputs, up_v, case.pack if case.packed else None)
            stage.journal.phase(Phase.COMPARE)
            keys = _gathered_keys(stage, case, groups)
            _collect(stage, case, groups.cp_rank, keys)


def _kernels(stage: Stage, case: _Case) -> AbstractContextManager[None]:
    scenario = stage.task.scenario
    return kernels_installed(
        scenario.kernels,
        stage.source,
        stage.recorder,
        seed=case.seed,
        overlays=scenario.overlays,
    )


def _batched_inputs(stage: Stage, case: _Case, groups: Groups) -> dict[str, torch.Tensor]:
    model = stage.task.scenario.model
    streams = [
        attention_inputs(model, source, case.pack, groups.cp_rank) for source in case.sources
    ]
    batched = {name: torch.cat([s[name] for s in streams], dim=1) for name in streams[0]}
    return {name: as_production(tensor, stage.source) for name, tensor in batched.items()}


def _gathered_keys(stage: Stage, case: _Case, groups: Groups) -> torch.Tensor:
    """Gather the indexer's local keys on the harness's own group, in packed order by our layout.

    Returns:
        ``[batch, keys, dim]``.
    """
    _q, local, _weights = stage.recorder.of("indexer")[-1].result
    local = unwrap(local).contiguous()
    parts = [torch.empty_like(local) for _ in range(groups.cp_size)]
    dist.all_gather(parts, local, group=groups.harness_cp)
    return to_packed_order(torch.cat(parts, dim=0), case.pack).transpose(0, 1)


def _plant(stage: Stage, case: _Case, cp_rank: int) -> None:
    task = stage.task
    found = for_rank(task.inject, task.scenario.id, task.global_rank)
    kinds = tuple(item.kind for item in found if not item.is_process_kind)
    plant(stage.recorder, kinds, rows_of_rank(case.pack, cp_rank))


def _collect(stage: Stage, case: _Case, cp_rank: int, keys: torch.Tensor) -> None:
    if stage.journal.current is not Phase.COMPARE:
        stage.journal.phase(Phase.COMPARE)
    site = Site(
        global_rank=stage.task.global_rank,
        cp_rank=cp_rank,
        microbatch=case.index,
        seed=case.seed,
    )
    subject = Subject(scenario=stage.task.scenario, pack=case.pack, site=site, keys=keys)
    evidence = list(collect(stage.recorder, subject))
    stage.journal.phase(Phase.RECORD)
    for record in evidence:
        stage.journal.evidence(record)
