"""Rules over single kernel calls, and over calls that are broken on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.scenario.call_spec import KernelCallSpec, SlotEdit
from harness.scenario.problems import NodePath
from harness.scenario.rules.finding import Finding, Rule
from harness.scenario.spec import Scenario


def _level(scenario: Scenario) -> Iterator[Finding]:
    wrapper = scenario.kernel_call.wrapper
    if (scenario.level == "kernel") == (wrapper is not None):
        return
    if wrapper is None:
        yield Finding(
            path=("level",),
            message="level kernel needs kernel_call.wrapper, found none; name the wrapper to call",
        )
    else:
        yield Finding(
            path=("kernel_call", "wrapper"),
            message=f"kernel_call is for level kernel, found level {scenario.level}; set level: "
            "kernel or remove the section",
        )


def _alone(scenario: Scenario) -> Iterator[Finding]:
    """Refuse what a single call cannot have."""
    if scenario.level != "kernel":
        return
    if scenario.kernels.dsa_kernel_backend != "cudnn":
        yield Finding(
            path=("kernels", "dsa_kernel_backend"),
            message="level kernel calls wrappers of backend cudnn, found "
            f"{scenario.kernels.dsa_kernel_backend}; use cudnn",
        )
    parallel = scenario.parallel
    for name in ("context_parallel_size", "tensor_model_parallel_size"):
        if getattr(parallel, name) > 1:
            yield Finding(
                path=("parallel", name),
                message=f"level kernel runs on one rank, found {name} {getattr(parallel, name)}; "
                "remove it",
            )
    if scenario.values.dtype != "bf16":
        yield Finding(
            path=("values", "dtype"),
            message=f"the kernels take bf16, found {scenario.values.dtype}; use bf16",
        )
    if scenario.overlays:
        yield Finding(
            path=("overlays",),
            message="overlays stand between Megatron and a kernel, and level kernel calls the "
            "kernel itself; remove them",
        )


_SELECTS = "indexer_top_k"
_MASKED = ("indexer_forward", "indexer_forward_top_k", "dense_attn_score_recompute")
"""Wrappers without a table of ids: the first is given scores, the others mask causally."""
_OF_TABLES = ("slots", "selected", "placement", "empty_slots", "lengths", "ids", "d_index_k")
_OF_SCORES = ("scores", "above", "deterministic")
_OF_MASKS = ("position", "offsets")


def _counts(scenario: Scenario) -> Iterator[Finding]:
    call = scenario.kernel_call
    if call.wrapper is None or call.selected is None or call.wrapper == _SELECTS:
        return
    width = call.width(scenario.model.dsa_indexer_topk)
    for what, room in (("slots", width), ("keys", call.keys)):
        if call.selected > room:
            yield Finding(
                path=("kernel_call", "selected"),
                message=f"{call.selected} selected keys do not go into {room} {what}; lower "
                f"selected or raise {what}",
            )


def _arguments(scenario: Scenario) -> Iterator[Finding]:
    """Refuse arguments that the wrapper does not have."""
    call = scenario.kernel_call
    if call.wrapper == _SELECTS or call.wrapper in _MASKED:
        selects = call.wrapper == _SELECTS
        foreign = {*_OF_TABLES, *(_OF_MASKS if selects else _OF_SCORES)}
        foreign -= {"selected"} if selects else set()
        yield from _unknown(call, sorted(foreign))
        return
    yield from _unknown(call, (*_OF_SCORES, *_OF_MASKS))
    backward = call.wrapper == "indexer_backward"
    attends = call.wrapper == "sparse_attention_backward"
    unknown = {
        "lengths": backward and call.lengths != "none",
        "d_index_k": call.wrapper is not None and not backward and call.d_index_k != "fresh",
        "ids": attends and call.ids != "default",
    }
    for key, given in unknown.items():
        if given:
            yield Finding(
                path=("kernel_call", key),
                message=f"{call.wrapper} has no such argument, found {getattr(call, key)}; remove "
                f"{key}",
            )
    if call.wrapper is not None and call.empty_slots == "zero" and not (backward or attends):
        yield Finding(
            path=("kernel_call", "empty_slots"),
            message=f"{call.wrapper} gives slots no weight, so that key 0 in an empty slot would "
            "count; use minus_one",
        )


_DEFAULTS = KernelCallSpec()


def _unknown(call: KernelCallSpec, keys: Iterable[str]) -> Iterator[Finding]:
    for key in keys:
        found = getattr(call, key)
        if call.wrapper is not None and found != getattr(_DEFAULTS, key):
            yield Finding(
                path=("kernel_call", key),
                message=f"{call.wrapper} has no such argument, found {found}; remove {key}",
            )


def _drawn(scenario: Scenario) -> Iterator[Finding]:
    """Refuse a number of keys above a plateau that does not go with the scores."""
    call = scenario.kernel_call
    counted = call.scores in ("plateau", "few_finite")
    if counted != bool(call.above) or call.above > call.keys:
        yield Finding(
            path=("kernel_call", "above"),
            message=f"above counts keys of scores: plateau or few_finite, 1 to {call.keys}; found "
            f"{call.above} with scores: {call.scores}",
        )


def _edits(scenario: Scenario) -> Iterator[Finding]:
    call = scenario.kernel_call
    if call.wrapper in _MASKED and call.edits:
        yield Finding(
            path=("kernel_call", "edits"),
            message=f"{call.wrapper} has neither slots nor lengths to edit; remove edits",
        )
        return
    for index, edit in enumerate(call.edits):
        path: NodePath = ("kernel_call", "edits", index)
        of_slot = edit.slot is not None and edit.id is not None and edit.length is None
        of_length = edit.slot is None and edit.id is None and edit.length is not None
        if not of_slot and not of_length:
            yield Finding(
                path=path,
                message="an edit has slot and id, or length alone; give one or the other",
            )
        if of_slot and call.wrapper == _SELECTS:
            yield Finding(path=path, message="indexer_top_k has no slots to edit; give a length")
        if of_length and call.lengths == "none" and call.wrapper != _SELECTS:
            yield Finding(
                path=(*path, "length"),
                message="the call has no lengths to edit; set kernel_call.lengths: selected or "
                "slots",
            )
        yield from _places(scenario, edit, path)


def _places(scenario: Scenario, edit: SlotEdit, path: NodePath) -> Iterator[Finding]:
    width = scenario.kernel_call.width(scenario.model.dsa_indexer_topk)
    batches = [call_shape(microbatch.sequences) for microbatch in scenario.microbatches]
    limits = {
        "batch": min((batch for batch, _ in batches), default=1),
        "row": min((rows for _, rows in batches), default=1),
        "slot": width,
    }
    for key, limit in limits.items():
        found = getattr(edit, key)
        if found is not None and found >= limit:
            yield Finding(
                path=(*path, key),
                message=f"{key} {found} is outside the call, which has {limit}; use 0 to "
                f"{limit - 1}",
            )


def call_shape(sequences: tuple[int, ...]) -> tuple[int, int]:
    """Batch and query rows of a single call: as many entries as sequences, of equal length."""
    return len(sequences), sequences[0]


def _equal_rows(scenario: Scenario) -> Iterator[Finding]:
    if scenario.level != "kernel":
        return
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.qkv_format != "sbhd":
            yield Finding(
                path=("microbatches", index, "qkv_format"),
                message="level kernel takes a batch of equal lengths; set qkv_format: sbhd",
            )


def _perturb(scenario: Scenario) -> Iterator[Finding]:
    fact = scenario.perturb.fact
    if fact is None:
        return
    if scenario.level not in ("attention", "model") or (
        scenario.kernels.dsa_kernel_backend != "cudnn"
    ):
        yield Finding(
            path=("perturb", "fact"),
            message="perturb breaks the production call of backend cudnn, found level "
            f"{scenario.level} and backend {scenario.kernels.dsa_kernel_backend}; use level "
            "attention or model with backend cudnn",
        )
    if fact == "gradient_arity" and not scenario.training.backward:
        yield Finding(
            path=("perturb", "fact"),
            message="gradient_arity needs training.backward: true; set it",
        )
    if scenario.perturb.ranks == "all":
        return
    size = scenario.parallel.context_parallel_size
    for index, rank in enumerate(scenario.perturb.ranks):
        if rank >= size:
            yield Finding(
                path=("perturb", "ranks", index),
                message=f"rank {rank} is outside context_parallel_size {size}; use 0 to {size - 1}",
            )


RULES = (
    Rule(needs=("level", "kernel_call"), check=_level),
    Rule(
        needs=("level", "kernels.dsa_kernel_backend", "parallel", "values.dtype", "overlays"),
        check=_alone,
    ),
    Rule(needs=("kernel_call", "model.dsa_indexer_topk"), check=_counts),
    Rule(needs=("kernel_call",), check=_arguments),
    Rule(needs=("kernel_call",), check=_drawn),
    Rule(needs=("kernel_call", "microbatches", "model.dsa_indexer_topk"), check=_edits),
    Rule(needs=("level", "microbatches"), check=_equal_rows),
    Rule(
        needs=(
            "perturb",
            "level",
            "kernels.dsa_kernel_backend",
            "training.backward",
            "parallel.context_parallel_size",
        ),
        check=_perturb,
    ),
)
