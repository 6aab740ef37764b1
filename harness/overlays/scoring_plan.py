"""Overlay ``scoring_plan``: the scorer of a call is decided once, from its layout, with a reason.

megatron-core 0.19.2 takes the context-parallel size for the number of sequences: packs on one rank
never reach a packed kernel, one entry always counts as one whole sequence, and what no kernel
serves falls back without a word. With this overlay every call is resolved to one of five plans
before anything is launched (https://github.com/NVIDIA/Megatron-LM/pull/6206): several sequences on
one rank are one THD call on the caller's own tensors, the scorer for one sequence serves exactly
the packs it is right for, what cannot be expressed is declined first, and an unfused plan warns
once. Key bounds of a pack follow its key boundaries where these differ from the queries'.

In a training job, before the first step::

    from harness.overlays import scoring_plan
    undo = scoring_plan.install()

Backends other than ``cudnn`` are left alone.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from harness.overlays.hook_facts import layout_facts, with_facts
from harness.overlays.packed_scorer import halves, select, whole_sequences
from harness.overlays.patching import VARIANT, Correction, Patches, found, module_of
from harness.overlays.plan_facts import call_facts, key_bounds, mark_plain, plain_marked
from harness.overlays.plan_resolver import (
    CallFacts,
    ScoringDecision,
    ScoringPlan,
    report_once,
    resolve,
)

NAME = "scoring_plan"
_PLAN_MODULE = f"{VARIANT}.dsa_scoring_plan"
_DISPATCH = f"{VARIANT}.dsa_kernels"
_CUDNN = f"{VARIANT}.dsa_cudnn_kernels"
_LAYOUT = f"{VARIANT}.dsa_layout"
_MASKING = f"{VARIANT}.dsa_masking"
_RESOLVE = "_resolve_fused_hook"
_THD = "_indexer_topk_multi_packed_cp_thd"
_PLAIN = "varlen_is_plain_causal"
_HOOKS = ("run_fused_dsa_attention", "run_fused_qk_topk", "run_fused_qk_topk_with_loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """The plan of the call that runs now, and the pack it is about."""

    decision: ScoringDecision
    facts: CallFacts
    packed_seq_params: Any


_TAKEN: ContextVar[_Taken | None] = ContextVar("scoring plan", default=None)


def install() -> Callable[[], None]:
    """Correct the loaded Megatron in this process.

    Returns:
        A function that takes the correction out again.

    Raises:
        OverlayRefusedError: when the build has a plan of its own, or another dispatcher.
    """
    return OVERLAY.install()


def _install(patches: Patches) -> None:
    variant = module_of(NAME, VARIANT)
    OVERLAY.check({"has_scoring_plan": _has_plan_module()})
    for hook in _HOOKS:
        found(NAME, _DISPATCH, hook, ("packed_seq_params", "cp_size", "single_packed_thd_sequence"))
    found(NAME, _DISPATCH, _RESOLVE, ("config", "hook_name"))
    found(NAME, _CUDNN, "_indexer_topk_bshd", ("packed_cu_seqlens_q", "packed_cp_size"))
    found(NAME, _CUDNN, _THD, ("starts", "ends", "packed_max_seqlen_k", "cp_rank"))
    found(NAME, _MASKING, "build_dsattention_forward_mask", ("packed_query_positions",))
    found(NAME, _MASKING, "build_fused_indexer_varlen_bounds", ("varlen_starts",))
    dispatch: Any = importlib.import_module(_DISPATCH)
    cudnn: Any = importlib.import_module(_CUDNN)
    layout: Any = importlib.import_module(_LAYOUT)
    masking: Any = importlib.import_module(_MASKING)
    plans = _plan_module()
    patches.put_item(sys.modules, _PLAN_MODULE, plans)
    patches.put(variant, "dsa_scoring_plan", plans)
    patches.put(dispatch, _RESOLVE, _offering_facts(getattr(dispatch, _RESOLVE)))
    planned = _Planned(plans=plans, dispatch=dispatch, layout=layout)
    for hook in _HOOKS:
        patches.put(dispatch, hook, planned.around(getattr(dispatch, hook)))
    patches.put(cudnn, "_indexer_topk_bshd", _as_planned(cudnn._indexer_topk_bshd, layout))
    patches.put(cudnn, _THD, _scoring_any_pack(cudnn))
    mask = masking.build_dsattention_forward_mask
    patches.put(masking, "build_dsattention_forward_mask", _with_key_bounds(mask, layout))
    bounds = masking.build_fused_indexer_varlen_bounds
    patches.put(masking, "build_fused_indexer_varlen_bounds", _keeping_mark(bounds))


def _has_plan_module() -> bool:
    try:
        importlib.import_module(_PLAN_MODULE)
    except ImportError:
        return False
    return True


def _plan_module() -> types.ModuleType:
    """Make the module in which newer builds resolve their plan, with the overlay's resolver."""
    module: Any = types.ModuleType(_PLAN_MODULE, "Scoring plans, by an overlay.")
    logger, said = logging.getLogger(_PLAN_MODULE), set[str]()

    def resolve_indexer_scoring_plan(facts: CallFacts) -> ScoringDecision:
        """Return the plan of a call."""
        return resolve(facts)

    def report_unfused_scoring_once(decision: ScoringDecision) -> str | None:
        """Warn of an unfused plan, on the first rank, once for each reason."""
        initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
        if initialised and torch.distributed.get_rank() != 0:
            return None
        return report_once(decision, said, logger)

    module.ScoringPlan = ScoringPlan
    module.resolve_indexer_scoring_plan = resolve_indexer_scoring_plan
    module.report_unfused_scoring_once = report_unfused_scoring_once
    module._REPORTED_UNFUSED = said
    return module


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planned:
    """Puts the plan before the dispatcher's hooks.

    Attributes:
        plans: The module that resolves plans.
        dispatch: Megatron's dispatcher.
        layout: Megatron's layout module.
    """

    plans: Any
    dispatch: Any
    layout: Any

    def around(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that resolves its plan first, and keeps to it."""
        released = inspect.signature(hook)
        signature = _with_plain_flag(released)

        @functools.wraps(hook)
        def planned(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            call = bound.arguments
            config = call["config"]
            plain = call[_PLAIN] if _PLAIN in released.parameters else call.pop(_PLAIN)
            if self.dispatch._get_dsa_kernel_backend(config) != "cudnn":
                return hook(*bound.args, **bound.kwargs)
            facts = call_facts(call, plain=plain, layout=self.layout)
            decision = self.plans.resolve_indexer_scoring_plan(facts)
            self.plans.report_unfused_scoring_once(decision)
            is_reference_loss = facts.dense_loss and not facts.plain_causal
            if decision.plan is ScoringPlan.DECLINE or is_reference_loss:
                self.dispatch._log_declined_hook(config, hook.__name__, decision.reason)
                return None
            taken = _Taken(
                decision=decision, facts=facts, packed_seq_params=call["packed_seq_params"]
            )
            token = _TAKEN.set(taken)
            try:
                return hook(*bound.args, **bound.kwargs)
            finally:
                _TAKEN.reset(token)

        planned.__signature__ = signature  # type: ignore[attr-defined]
        return planned


def _offering_facts(resolve_hook: Callable[..., Any]) -> Callable[..., Any]:
    """Have hooks that take facts of the layout as keywords be given them."""

    @functools.wraps(resolve_hook)
    def resolved(*args: Any, **kwargs: Any) -> Any:
        hook, taken = resolve_hook(*args, **kwargs), _TAKEN.get()
        if hook is None or taken is None:
            return hook
        return with_facts(hook, layout_facts(taken.facts))

    return resolved


def _with_plain_flag(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that takes the mask builder's flag, as newer dispatchers do."""
    if _PLAIN in signature.parameters:
        return signature
    flag = inspect.Parameter(_PLAIN, inspect.Parameter.KEYWORD_ONLY, default=False)
    return signature.replace(parameters=[*signature.parameters.values(), flag])


def _as_planned(score: Callable[..., Any], layout: Any) -> Callable[..., Any]:
    """Have the cuDNN scorer take the branch of the plan, whatever the hooks were told.

    The hooks' own keywords stay as they are: they mean context parallelism to whoever hooks in.
    """
    signature = inspect.signature(score)

    @functools.wraps(score)
    def scored(*args: Any, **kwargs: Any) -> Any:
        taken = _TAKEN.get()
        if taken is None:
            return score(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(_branch(taken, layout))
        return score(*bound.args, **bound.kwargs)

    return scored


def _branch(taken: _Taken, layout: Any) -> dict[str, Any]:
    """Return the arguments by which the scorer takes a plan's branch."""
    none = {
        "packed_cu_seqlens_q": None,
        "packed_cu_seqlens_k": None,
        "packed_max_seqlen_q": None,
        "packed_max_seqlen_k": None,
    }
    match taken.decision.plan:
        case ScoringPlan.PLAIN_CAUSAL:
            return {"varlen_starts": None, "varlen_ends": None}
        case ScoringPlan.PACKED_THD_GENERAL:
            params = taken.packed_seq_params
            cu_seqlens_q, cu_seqlens_k = layout.get_packed_qk_cu_seqlens(params)
            return {
                "use_local_indexer_varlen": True,
                "single_packed_thd_sequence": False,
                "packed_cu_seqlens_q": cu_seqlens_q,
                "packed_cu_seqlens_k": cu_seqlens_k,
                "packed_max_seqlen_q": params.max_seqlen_q,
                "packed_max_seqlen_k": params.max_seqlen_kv,
                "packed_cp_size": taken.facts.cp_size,
            }
        case ScoringPlan.PACKED_SINGLE_SEGMENTS:
            return {"use_local_indexer_varlen": True, "single_packed_thd_sequence": True}
        case _:
            return {"single_packed_thd_sequence": False, **none}


def _scoring_any_pack(cudnn: Any) -> Callable[..., Any]:
    """Return what stands for the released THD scorer in Megatron's cuDNN module."""

    @functools.wraps(getattr(cudnn, _THD))
    def scored(*args: Any, **kwargs: Any) -> Any:
        return _score_pack(cudnn, *args, **kwargs)

    return scored


def _score_pack(
    build: Any,
    q_bshd: torch.Tensor,
    k_bshd: torch.Tensor,
    w_bsh: torch.Tensor,
    topk_k: int,
    return_topk_scores: bool,
    starts: torch.Tensor,
    ends: torch.Tensor,
    packed_cu_seqlens_q: torch.Tensor,
    packed_cu_seqlens_k: torch.Tensor,
    packed_max_seqlen_q: int,
    packed_max_seqlen_k: int,
    cp_size: int,
    cp_rank: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stand for the released THD scorer, which knows neither one rank nor rows behind a pack.

    Args:
        build: Megatron's cuDNN module.
        q_bshd: ``[1, rows, heads, dim]``.
        k_bshd: ``[1, keys, 1, dim]`` in packed order.
        w_bsh: ``[1, rows, heads]``.
        topk_k: Keys to select.
        return_topk_scores: Whether their scores are wanted.
        starts: ``[rows]`` first key of each row, in packed ids.
        ends: ``[rows]`` key behind each row's last.
        packed_cu_seqlens_q: ``[sequences + 1]`` padded boundaries of the queries, over all ranks.
        packed_cu_seqlens_k: The same of the keys.
        packed_max_seqlen_q: Longest query sequence, over all ranks.
        packed_max_seqlen_k: The same of the keys.
        cp_size: Ranks.
        cp_rank: This one.

    Returns:
        ``[1, rows, topk]`` packed ids, -1 for an empty slot, and their scores or None.
    """
    keys, boundaries = k_bshd[0], (packed_cu_seqlens_q, packed_cu_seqlens_k)
    if cp_size == 1:
        longest = (packed_max_seqlen_q, packed_max_seqlen_k)
        segments = whole_sequences(keys, *boundaries, *longest, device=q_bshd.device)
    else:
        segments = halves(
            keys,
            *boundaries,
            packed_max_seqlen_q,
            cp_size=cp_size,
            cp_rank=cp_rank,
            rows=q_bshd.size(1),
            device=q_bshd.device,
        )
    return select(
        build, q_bshd[0], w_bsh[0], segments, starts, ends, topk_k, with_scores=return_topk_scores
    )


def _with_key_bounds(build: Callable[..., Any], layout: Any) -> Callable[..., Any]:
    """Have a pack's bounds follow its key boundaries, and plain causal ones be told apart."""

    @functools.wraps(build)
    def built(**kwargs: Any) -> Any:
        mask, bounds, plain = build(**kwargs)
        if plain:
            mark_plain(bounds[0])
        return mask, key_bounds(bounds, kwargs, layout), plain

    return built


def _keeping_mark(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Have bounds that are converted for a kernel stay marked as plain causal."""

    @functools.wraps(convert)
    def converted(**kwargs: Any) -> Any:
        bounds = convert(**kwargs)
        if bounds is not None and plain_marked(kwargs.get("varlen_starts")):
            mark_plain(bounds[0])
        return bounds

    return converted


OVERLAY = Correction(
    name=NAME,
    provides={"has_scoring_plan": True, "reports_unfused_plan": True, "offers_layout_facts": True},
    unless="has_scoring_plan",
    does="resolves a scoring plan itself (dsa_scoring_plan)",
    patch=_install,
)
"""The overlay as the harness's table holds it."""
