"""A capture as a scenario: the history of layouts that led to the fault, to run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from harness.repro.capture_ends import End, chosen_end
from harness.repro.capture_history import config_of, doubts_of, packs_until
from harness.repro.capture_pack import RecordedPack, microbatch_spec
from harness.repro.capture_records import Capture, CaptureError, Rank
from harness.scenario.spec import (
    Backend,
    GraphSpec,
    KernelsSpec,
    LimitsSpec,
    MicrobatchSpec,
    ModelledKernels,
    ModelSpec,
    ParallelSpec,
    ReferenceSpec,
    Scenario,
    TrainingSpec,
    ValuesSpec,
)

Level = Literal["scorer", "attention", "model"]

RANKS_OF_A_NODE = 8
"""Without a word on ranks, a group that needs more of them runs at level ``scorer``."""
_MANY_SCORES = 2**26
"""Scores of a rank above which the reference judges a sample of rows."""
_LONG = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class FromCapture:
    """A scenario made from a capture.

    Attributes:
        notes: How it was made and what it leaves out, for the head of the file.
        doubts: Those of them that say what could not be read.
    """

    scenario: Scenario
    end: End
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the user asks for; None leaves the choice to the rules of ``docs/capture.md``.

    Attributes:
        rank: Global rank whose history counts.
        until: Last microbatch of the history.
        history: Microbatches at most.
        ranks: Rank processes at most; larger groups are scaled down.
    """

    rank: int | None = None
    until: int | None = None
    history: int | None = None
    ranks: int | None = None
    level: Level | None = None
    name: str | None = None


def scenario_from(capture: Capture, wishes: Wishes) -> FromCapture:
    """Make a scenario of the rank at fault.

    Raises:
        CaptureError: when the capture does not say enough, or a wish cannot be met.
    """
    end = chosen_end(capture, wishes.rank)
    rank = capture.ranks[end.rank]
    last = end.microbatch if wishes.until is None else wishes.until
    packs = packs_until(capture, rank, last, wishes.history)
    doubts = tuple(doubts_of(capture, rank))
    notes = [end.how, *doubts, *(note for pack in packs for note in pack.notes)]
    level, scale = _level_and_scale(packs, wishes, notes)
    configured = _scaled(packs[-1].configured, scale)
    config = config_of(capture, rank, last)
    backward = _has_backward(rank, packs) and level != "scorer"
    scenario = Scenario(
        id=wishes.name or f"capture/rank{end.rank}-microbatch{last}",
        summary=_summary(end, packs, rank),
        tags=("capture",),
        model=_model(config),
        level=level,
        kernels=_kernels(rank, config, notes),
        parallel=_parallel(rank, packs, config, level, configured, last),
        microbatches=_microbatches(packs, level, scale, configured),
        schedule=_schedule(rank, packs, level) if backward else None,
        values=_values(rank, config, packs, notes),
        training=_training(config, backward=backward, level=level),
        graph=_graph(config, level, notes),
        reference=_reference(packs),
        limits=LimitsSpec(time_s=600.0 if _tokens(packs) > _LONG else 60.0 + 10.0 * len(packs)),
    )
    return FromCapture(scenario=scenario, end=end, notes=tuple(notes), doubts=doubts)


def _level_and_scale(
    packs: Sequence[RecordedPack], wishes: Wishes, notes: list[str]
) -> tuple[Level, int]:
    """Choose the level, and the divisor of all CP sizes."""
    tp_size = packs[-1].tp_size
    sizes = {size for pack in packs for size in (pack.cp_size, pack.configured)}
    needed = max(sizes) * tp_size
    level = wishes.level
    if level is None:
        level = "scorer" if wishes.ranks is None and needed > RANKS_OF_A_NODE else "attention"
        if level == "scorer":
            notes.append(
                f"level scorer: the job's group of {needed} ranks is larger than a node; the CP "
                "size and the rank are the job's, gathers and attention do not run. With --ranks N "
                "it is scaled down to N ranks that do all of it"
            )
    if level == "scorer" or wishes.ranks is None or needed <= wishes.ranks:
        return level, 1
    scale = _scale(sizes, tp_size, wishes.ranks)
    small = max(sizes) // scale
    notes.append(
        f"scaled down: CP {max(sizes)} is {small} here, so that {small * tp_size} ranks do. "
        f"Sequences and padded lengths are the job's; each rank's chunks are {scale} times as "
        "long and there are as many fewer of them, so a fault that needs the job's chunk length, "
        "its number of chunks or one of its higher ranks may not show"
    )
    return level, scale


def _scale(sizes: set[int], tp_size: int, ranks: int) -> int:
    if tp_size > ranks:
        raise CaptureError(
            f"--ranks {ranks}: expected at least the job's tensor-parallel size {tp_size}, which "
            "cannot be scaled down; give more, or use --level scorer"
        )
    for scale in range(2, max(sizes) + 1):
        whole = all(size % scale == 0 or size < scale for size in sizes)
        if whole and max(sizes) // scale * tp_size <= ranks:
            return scale
    raise AssertionError("the largest size itself always serves")


def _scaled(size: int, scale: int) -> int:
    return max(1, size // scale)


def _microbatches(
    packs: Sequence[RecordedPack], level: Level, scale: int, configured: int
) -> tuple[MicrobatchSpec, ...]:
    specs = (
        microbatch_spec(pack, cp_size=_scaled(pack.cp_size, scale), configured=configured)
        for pack in packs
    )
    # Nothing is trained at level scorer, so that no step is an evaluation either.
    return tuple(replace(spec, forward_only=False) if level == "scorer" else spec for spec in specs)


def _model(config: Mapping[str, Any]) -> ModelSpec:
    """Take Megatron's own fields; those that it does not have keep their defaults."""
    found: dict[str, Any] = {}
    defaults = ModelSpec(name="captured")
    for item in fields(ModelSpec):
        value, default = config.get(item.name), getattr(defaults, item.name)
        if item.name == "name" or value is None:
            continue
        if isinstance(default, float) and isinstance(value, (int, float)):
            found[item.name] = float(value)
        elif type(value) is type(default):
            found[item.name] = value
    return ModelSpec(name="captured", **found)


def _kernels(rank: Rank, config: Mapping[str, Any], notes: list[str]) -> KernelsSpec:
    backend = config.get("dsa_kernel_backend", "none")
    if backend not in ("none", "cudnn", "tilelang"):
        raise CaptureError(
            f"rank {rank.rank}: expected dsa_kernel_backend none, cudnn or tilelang, found "
            f"{str(backend)[:40]!r}"
        )
    if backend != "cudnn":
        return KernelsSpec(dsa_kernel_backend=cast(Backend, backend))
    modelled: dict[str, Any] = {}
    version = (rank.process.get("versions") or {}).get("cudnn_frontend")
    if isinstance(version, str):
        modelled["cudnn_frontend"] = version
    else:
        notes.append("the release of cudnn-frontend is not in the capture; the default is modelled")
    capability = (rank.process.get("device") or {}).get("capability")
    arch = {"9.0": "sm90", "10.0": "sm100", "10.3": "sm100"}.get(str(capability))
    if arch is not None:
        modelled["arch"] = arch
    else:
        notes.append(f"compute capability {capability}: sm100 is modelled")
    return KernelsSpec(dsa_kernel_backend="cudnn", modelled=ModelledKernels(**modelled))


def _parallel(
    rank: Rank,
    packs: Sequence[RecordedPack],
    config: Mapping[str, Any],
    level: Level,
    configured: int,
    last: int,
) -> ParallelSpec:
    is_dynamic = any(pack.cp_size != pack.configured for pack in packs)
    tp_size = 1 if level == "scorer" else packs[-1].tp_size
    own = rank.microbatches[last].facts.get("cp") or {}
    return ParallelSpec(
        context_parallel_size=configured,
        dynamic_context_parallel=is_dynamic,
        tensor_model_parallel_size=tp_size,
        sequence_parallel=tp_size > 1 and config.get("sequence_parallel") is True,
        cp_ranks=(int(own.get("rank", 0)),) if level == "scorer" and configured > 1 else "all",
    )


def _has_backward(rank: Rank, packs: Sequence[RecordedPack]) -> bool:
    of_history = [rank.microbatches[pack.number] for pack in packs]
    return any(one.has_backward or one.replayed for one in of_history)


def _schedule(rank: Rank, packs: Sequence[RecordedPack], level: Level) -> tuple[str, ...] | None:
    """Order of forwards and backwards; backwards that the fault prevented come last.

    None where it is the level's default.
    """
    place = {pack.number: index for index, pack in enumerate(packs)}
    trained = [index for index, pack in enumerate(packs) if pack.is_training]
    steps = [f"{step[0]}{place[int(step[1:])]}" for step in rank.steps if int(step[1:]) in place]
    steps = [step for step in steps if step[0] == "F" or int(step[1:]) in trained]
    steps += [f"B{index}" for index in trained if f"B{index}" not in steps]
    by_microbatch = [
        f"{kind}{index}"
        for index in range(len(packs))
        for kind in ("FB" if index in trained else "F")
    ]
    # Without a schedule attention runs microbatch by microbatch, and whole layers all forwards
    # first.
    default = by_microbatch if level == "attention" else sorted(by_microbatch, key=_forward_first)
    return None if steps == default else tuple(steps)


def _forward_first(step: str) -> bool:
    return step[0] == "B"


def _values(
    rank: Rank, config: Mapping[str, Any], packs: Sequence[RecordedPack], notes: list[str]
) -> ValuesSpec:
    dtype = str((rank.microbatches[packs[-1].number].facts.get("query") or {}).get("dtype"))
    if dtype not in ("bfloat16", "float32"):
        notes.append(f"the job ran in {dtype}; the scenario runs in bf16")
    below = sum(
        int(line.get("below_fp16") or 0)
        for pack in packs
        for line in rank.microbatches[pack.number].scores
        if isinstance(line.get("below_fp16"), int)
    )
    if below:
        notes.append(f"{below} sampled scores lay below the fp16 minimum: values.scores underflow")
    return ValuesSpec(
        dtype="fp32" if dtype == "float32" else "bf16", scores="underflow" if below else "normal"
    )


def _training(config: Mapping[str, Any], *, backward: bool, level: Level) -> TrainingSpec:
    if not backward:
        return TrainingSpec()
    granularity = config.get("recompute_granularity")
    modules = config.get("recompute_modules") or []
    attention = granularity == "selective" and "core_attn" in modules
    recompute = "full" if granularity == "full" and level == "model" else "none"
    return TrainingSpec(
        backward=True,
        dsa_indexer_loss_coeff=float(config.get("dsa_indexer_loss_coeff") or 0.0),
        dsa_indexer_use_sparse_loss=config.get("dsa_indexer_use_sparse_loss") is True,
        calculate_per_token_loss=config.get("calculate_per_token_loss") is True,
        recompute=cast(Any, "selective" if attention else recompute),
    )


def _graph(config: Mapping[str, Any], level: Level, notes: list[str]) -> GraphSpec:
    impl = config.get("cuda_graph_impl", "none")
    if impl in (None, "none") or level == "scorer":
        return GraphSpec()
    if impl not in ("local", "transformer_engine", "full_iteration"):
        notes.append(f"cuda_graph_impl {str(impl)[:40]!r} is not known here; left out")
        return GraphSpec()
    given = config.get("cuda_graph_modules")
    modules = tuple(str(name) for name in given) if isinstance(given, list) and given else ("attn",)
    return GraphSpec(cuda_graph_impl=cast(Any, impl), cuda_graph_modules=modules)


def _reference(packs: Sequence[RecordedPack]) -> ReferenceSpec:
    largest = max(sum(pack.padded) // pack.cp_size * sum(pack.kv_padded) for pack in packs)
    return ReferenceSpec(rows=256) if largest > _MANY_SCORES else ReferenceSpec()


def _tokens(packs: Sequence[RecordedPack]) -> int:
    return max(sum(pack.kv_padded) for pack in packs)


def _summary(end: End, packs: Sequence[RecordedPack], rank: Rank) -> str:
    count = len(packs)
    before = "" if count == 1 else f", after {count - 1} other{'s' if count > 2 else ''}"
    unread = rank.unread_last
    lacks = "" if unread is None else f"; its last one, {unread}, could not be read"
    number = packs[-1].number
    return f"What rank {end.rank} of a job was given in microbatch {number}{before}{lacks}."
