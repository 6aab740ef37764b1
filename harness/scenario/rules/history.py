"""Rules over what microbatches say of groups, of packs side by side and of evaluation steps."""

from __future__ import annotations

from collections.abc import Iterator

from harness.layout import LayoutError
from harness.scenario.parts import num_parts, part_spec
from harness.scenario.rules.finding import Finding, Rule, effective_cp, warn
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario

_WITH_GROUPS = ("attention", "model")


def _cp_group(scenario: Scenario) -> Iterator[Finding]:
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.cp_group == "real":
            continue
        size = effective_cp(scenario, microbatch)
        path = ("microbatches", index, "cp_group")
        if not scenario.parallel.dynamic_context_parallel:
            yield Finding(
                path=path,
                message="only a microbatch with a group of its own can have none; set "
                "parallel.dynamic_context_parallel: true, or remove cp_group",
            )
        elif size > 1:
            yield Finding(
                path=path,
                message=f"no group stands for effective CP 1, found {size}; set cp: 1, or use "
                "cp_group: real",
            )


def _beside(scenario: Scenario) -> Iterator[Finding]:
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.beside:
            yield from _parts(scenario, microbatch, index)


def _parts(scenario: Scenario, microbatch: MicrobatchSpec, index: int) -> Iterator[Finding]:
    path = ("microbatches", index, "beside")
    size = effective_cp(scenario, microbatch)
    others = num_parts(scenario, microbatch) - 1
    if not scenario.parallel.dynamic_context_parallel or scenario.level not in _WITH_GROUPS:
        yield Finding(
            path=path,
            message="packs run side by side under Dynamic CP at levels attention and model; set "
            "parallel.dynamic_context_parallel: true there, or remove beside",
        )
        return
    if len(microbatch.beside) != others:
        ranks = (others + 1) * size
        yield Finding(
            path=path,
            message=f"{ranks} ranks make {others + 1} groups of {size}, so that {others} further "
            f"packs run beside sequences, found {len(microbatch.beside)}; give as many, or none",
        )
        return
    given = (microbatch.padded, microbatch.kv_sequences, microbatch.tail_padding)
    if given != ("auto", None, 0) or microbatch.qkv_format != "thd":
        yield Finding(
            path=path,
            message="packs side by side are padded by padded: auto, without kv_sequences or "
            "tail_padding, in qkv_format thd; remove those keys, or beside",
        )
        return
    for place in range(others):
        try:
            build_pack(part_spec(microbatch, place + 1), size)
        except LayoutError as error:
            yield Finding(path=(*path, place), message=str(error))


def _forward_only(scenario: Scenario) -> Iterator[Finding]:
    for index, microbatch in enumerate(scenario.microbatches):
        if not microbatch.forward_only:
            continue
        path = ("microbatches", index, "forward_only")
        if scenario.level not in _WITH_GROUPS:
            yield Finding(
                path=path,
                message=f"level {scenario.level} trains nothing that an evaluation step could "
                "stand between; use level attention or model, or remove forward_only",
            )
        elif not scenario.training.backward:
            yield warn(
                path, "forward_only changes little without training.backward: true; remove it"
            )


RULES = (
    Rule(
        needs=(
            "microbatches",
            "parallel.context_parallel_size",
            "parallel.dynamic_context_parallel",
        ),
        check=_cp_group,
    ),
    Rule(
        needs=(
            "level",
            "microbatches",
            "parallel.context_parallel_size",
            "parallel.dynamic_context_parallel",
            "parallel.tensor_model_parallel_size",
        ),
        check=_beside,
    ),
    Rule(needs=("level", "microbatches", "training.backward"), check=_forward_only),
)
