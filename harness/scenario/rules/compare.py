"""Rules over what is run again to be compared, and over the mask of real rows."""

from __future__ import annotations

from collections.abc import Iterator

from harness.layout import LayoutError
from harness.scenario.rules.finding import Finding, Rule
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import Scenario


def _level(scenario: Scenario) -> Iterator[Finding]:
    compare = scenario.compare
    asked = {
        "context_parallel_size": bool(compare.context_parallel_size),
        "effective_cp": bool(compare.effective_cp),
        "dtype": compare.dtype is not None,
    }
    for key, given in asked.items():
        if given and scenario.level not in ("attention", "model"):
            yield Finding(
                path=("compare", key),
                message=f"level {scenario.level} runs nothing again; use level attention or model, "
                "or remove the key",
            )


def _interrupted(scenario: Scenario) -> Iterator[Finding]:
    if "interrupted" in scenario.compare.launches and scenario.level not in ("attention", "model"):
        yield Finding(
            path=("compare", "launches", scenario.compare.launches.index("interrupted")),
            message=f"level {scenario.level} has no attention that an exception could end; use "
            "level attention, or remove interrupted",
        )


def _sizes(scenario: Scenario) -> Iterator[Finding]:
    yield from _sizes_of(scenario, "context_parallel_size", scenario.compare.context_parallel_size)


def _effective(scenario: Scenario) -> Iterator[Finding]:
    compare = scenario.compare
    if not compare.effective_cp:
        return
    if scenario.level == "model":
        yield Finding(
            path=("compare", "effective_cp"),
            message="the group of a whole model is the build's to set; use level attention, or "
            "remove effective_cp",
        )
    elif scenario.parallel.tensor_model_parallel_size > 1:
        yield Finding(
            path=("compare", "effective_cp"),
            message="parts of the group are made for tensor_model_parallel_size 1, found "
            f"{scenario.parallel.tensor_model_parallel_size}; use 1, or remove effective_cp",
        )
    else:
        yield from _sizes_of(scenario, "effective_cp", compare.effective_cp)


def _sizes_of(scenario: Scenario, key: str, sizes: tuple[int, ...]) -> Iterator[Finding]:
    if scenario.level not in ("attention", "model"):
        return
    parallel = scenario.parallel
    ranks = scenario.num_ranks // parallel.tensor_model_parallel_size
    for place, size in enumerate(sizes):
        path = ("compare", key, place)
        if size == parallel.context_parallel_size:
            yield Finding(
                path=path,
                message=f"CP {size} is the scenario's own size, so the comparison says nothing; "
                "use another",
            )
        elif ranks % size:
            yield Finding(
                path=path,
                message=f"CP {size} does not divide the {ranks} ranks of the scenario; use a "
                "divisor",
            )
        else:
            yield from _cuts(scenario, size, path)


def _cuts(scenario: Scenario, size: int, path: tuple[str | int, ...]) -> Iterator[Finding]:
    """Report sequences whose padded lengths the other size cannot cut."""
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.qkv_format != "thd":
            continue
        try:
            padded = build_pack(microbatch, scenario.parallel.context_parallel_size).q_padded
        except LayoutError:
            # Reported where the lengths are checked.
            continue
        wrong = [length for length in padded if size > 1 and length % (2 * size)]
        if wrong:
            yield Finding(
                path=path,
                message=f"microbatches[{index}] has a padded length of {wrong[0]}, which is not a "
                f"multiple of 2 * {size}; set padded, or compare with another size",
            )


def _dynamic(scenario: Scenario) -> Iterator[Finding]:
    if scenario.compare.context_parallel_size and scenario.parallel.dynamic_context_parallel:
        yield Finding(
            path=("compare", "context_parallel_size"),
            message="comparing CP sizes needs one CP size for all microbatches, found "
            "dynamic_context_parallel; remove one of them",
        )


def _dtype(scenario: Scenario) -> Iterator[Finding]:
    if scenario.compare.dtype is None:
        return
    path = ("compare", "dtype")
    if scenario.values.dtype == scenario.compare.dtype:
        yield Finding(
            path=path,
            message=f"values.dtype is {scenario.values.dtype} already; use bf16 there, or remove "
            "compare.dtype",
        )
    if scenario.kernels.dsa_kernel_backend != "none":
        yield Finding(
            path=path,
            message=f"kernels of backend {scenario.kernels.dsa_kernel_backend} take bf16 only; use "
            "dsa_kernel_backend: none, or remove compare.dtype",
        )
    if not scenario.training.backward:
        yield Finding(
            path=path,
            message="values are judged with training.backward: true only; set it, or remove "
            "compare.dtype",
        )


def _mask(scenario: Scenario) -> Iterator[Finding]:
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.real_token_mask_q and microbatch.qkv_format != "thd":
            yield Finding(
                path=("microbatches", index, "real_token_mask_q"),
                message="the mask goes with packed sequences; use qkv_format: thd, or remove it",
            )


RULES = (
    Rule(needs=("level", "compare"), check=_level),
    Rule(needs=("level", "compare.launches"), check=_interrupted),
    Rule(
        needs=(
            "level",
            "compare.context_parallel_size",
            "parallel.context_parallel_size",
            "parallel.tensor_model_parallel_size",
            "microbatches",
        ),
        check=_sizes,
    ),
    Rule(
        needs=(
            "level",
            "compare.effective_cp",
            "parallel.context_parallel_size",
            "parallel.tensor_model_parallel_size",
            "microbatches",
        ),
        check=_effective,
    ),
    Rule(
        needs=("compare.context_parallel_size", "parallel.dynamic_context_parallel"),
        check=_dynamic,
    ),
    Rule(
        needs=(
            "compare.dtype",
            "values.dtype",
            "kernels.dsa_kernel_backend",
            "training.backward",
        ),
        check=_dtype,
    ),
    Rule(needs=("microbatches",), check=_mask, each_microbatch=True),
)
