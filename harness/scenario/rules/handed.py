"""Rules over how tensors and hooks are handed over: boundaries, strides, another party's hook."""

from __future__ import annotations

from collections.abc import Iterator

from harness.layout import LayoutError, Pack
from harness.record.verdict import Verdict
from harness.scenario.rules.finding import Finding, Rule, effective_cp
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario


def _boundaries(scenario: Scenario) -> Iterator[Finding]:
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.boundaries == "own":
            continue
        path = ("microbatches", index, "boundaries")
        if microbatch.qkv_format != "thd":
            yield Finding(
                path=path,
                message="boundaries is for qkv_format thd only, an unpacked batch has none; "
                "remove it",
            )
            continue
        try:
            pack = build_pack(microbatch, effective_cp(scenario, microbatch))
        except LayoutError:
            # Reported where the lengths are checked.
            continue
        why = _lost(microbatch, pack, refused=scenario.expect.verdict is Verdict.REFUSED)
        if why is not None:
            yield Finding(path=path, message=why)


def _lost(microbatch: MicrobatchSpec, pack: Pack, *, refused: bool) -> str | None:
    """Say what part of the layout this way of handing it over would lose."""
    way = microbatch.boundaries
    same_keys = (pack.q_lengths, pack.q_padded) == (pack.k_lengths, pack.k_padded)
    if way in ("shared", "one", "query_only") and not same_keys:
        return (
            f"boundaries {way} gives the keys the lists of the queries, but kv_sequences or "
            "kv_padded differ; make them equal, or use boundaries: own"
        )
    same_padded = (pack.q_lengths, pack.k_lengths) == (pack.q_padded, pack.k_padded)
    if way == "one" and not same_padded:
        return (
            f"boundaries one gives real and padded lists the same values, but {pack.q_lengths} is "
            f"padded to {pack.q_padded}; give lengths that need no padding"
        )
    if way == "real_only" and not same_padded and not refused:
        return (
            f"boundaries real_only hands over no padded lists, but {pack.q_lengths} is padded to "
            f"{pack.q_padded}; give lengths that need no padding, or expect.verdict: refused"
        )
    return None


def _strided(scenario: Scenario) -> Iterator[Finding]:
    if not scenario.values.strided:
        return
    path = ("values", "strided")
    if scenario.level not in ("scorer", "attention"):
        yield Finding(
            path=path,
            message="strided is about tensors that the harness hands over, found level "
            f"{scenario.level}, which makes its own; use level scorer or attention",
        )
    elif scenario.level == "attention" and _has_a_layer_in_front(scenario):
        yield Finding(
            path=path,
            message="under Dynamic CP and recomputation the build's own layer stands in front of "
            "core attention, which always makes contiguous queries; remove strided, or both of "
            "parallel.dynamic_context_parallel and training.recompute",
        )


def _has_a_layer_in_front(scenario: Scenario) -> bool:
    return scenario.parallel.dynamic_context_parallel or scenario.training.recompute != "none"


def _hook(scenario: Scenario) -> Iterator[Finding]:
    hook = scenario.kernels.third_party_hook.hook
    if hook is None:
        return
    path = ("kernels", "third_party_hook", "hook")
    if scenario.kernels.dsa_kernel_backend != "cudnn" or scenario.level != "attention":
        yield Finding(
            path=path,
            message="a third party's hook stands before that of backend cudnn at level attention, "
            f"found backend {scenario.kernels.dsa_kernel_backend} at level {scenario.level}; "
            "change them, or remove the hook",
        )
    training = scenario.training
    with_loss = training.dsa_indexer_loss_coeff > 0 and training.backward
    sparse = with_loss and training.dsa_indexer_use_sparse_loss
    if hook == "run_fused_qk_topk_with_loss" and not sparse:
        yield Finding(
            path=path,
            message="run_fused_qk_topk_with_loss is asked where the sparse indexer loss is "
            "trained; set training.backward, dsa_indexer_loss_coeff and "
            "dsa_indexer_use_sparse_loss",
        )
    if hook == "run_fused_qk_topk" and with_loss:
        yield Finding(
            path=path,
            message="run_fused_qk_topk is not asked where an indexer loss is trained; set "
            "dsa_indexer_loss_coeff: 0.0, or use run_fused_qk_topk_with_loss",
        )


RULES = (
    Rule(
        needs=("microbatches", "parallel.context_parallel_size", "expect.verdict"),
        check=_boundaries,
        each_microbatch=True,
    ),
    Rule(
        needs=(
            "values.strided",
            "level",
            "parallel.dynamic_context_parallel",
            "training.recompute",
        ),
        check=_strided,
    ),
    Rule(
        needs=(
            "kernels.third_party_hook.hook",
            "kernels.dsa_kernel_backend",
            "level",
            "training",
        ),
        check=_hook,
    ),
)
