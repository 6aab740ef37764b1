"""Which scorer an attention call takes, and why: a total function of facts on the host.

Written from the description of https://github.com/NVIDIA/Megatron-LM/pull/6206. How many sequences
a pack holds and over how many ranks it is spread are independent: one rank can hold several
sequences, and several ranks can share one. No fact here makes a device wait.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass


class ScoringPlan(enum.Enum):
    """How indexer scores and the selected keys come about."""

    PLAIN_CAUSAL = "plain_causal"
    PACKED_SINGLE_SEGMENTS = "packed_single_segments"
    PACKED_THD_GENERAL = "packed_thd_general"
    UNFUSED_BOUNDS = "unfused_bounds"
    DECLINE = "decline"

    @property
    def fused(self) -> bool:
        """Whether a fused kernel scores."""
        return self not in (ScoringPlan.UNFUSED_BOUNDS, ScoringPlan.DECLINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringDecision:
    """A plan and the condition that decided it."""

    plan: ScoringPlan
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """What is known of one attention call without reading a device.

    Attributes:
        has_bounds: The rows' first and last keys were handed over.
        plain_causal: These are the ones of whole sequences from key 0 on.
        explicit_key_positions: Key positions of the caller's own were handed over.
        packed: The batch is packed (THD).
        cp_size: Effective context-parallel size.
        batch: Entries of the batch; a packed batch has one.
        rows: Local query rows of the call.
        keys: Keys of the call, after the gather.
        entries_q: Entries in the boundaries of the queries, None where there are none.
        entries_k: The same of the keys.
        longest_q: Longest query sequence, over all ranks; None where it is not known on the host.
        longest_k: The same of the keys.
        slice_of: Rows of the rank where the call has a tensor-parallel slice of them, else None.
        dense_loss: The indexer loss wants the scores of all keys.
    """

    has_bounds: bool
    plain_causal: bool
    explicit_key_positions: bool
    packed: bool
    cp_size: int
    batch: int
    rows: int
    keys: int
    entries_q: int | None = None
    entries_k: int | None = None
    longest_q: int | None = None
    longest_k: int | None = None
    slice_of: int | None = None
    dense_loss: bool = False


def resolve(facts: CallFacts) -> ScoringDecision:
    """Return the plan of a call; every call has one."""
    if facts.explicit_key_positions:
        return _decline("key positions of the caller's own are not expressible as key bounds")
    if not facts.has_bounds:
        return _decline("the mask yields no first and last key for each row")
    if not facts.packed:
        return _resolve_unpacked(facts)
    if facts.dense_loss:
        return _unfused("dense indexer loss wants all scores of packed rows, no kernel gives them")
    single = _why_not_single(facts)
    if single is None:
        return ScoringDecision(
            plan=ScoringPlan.PACKED_SINGLE_SEGMENTS,
            reason="one sequence over several ranks: scored as its front and back segment",
        )
    general = _why_not_general(facts)
    if general is None:
        return ScoringDecision(
            plan=ScoringPlan.PACKED_THD_GENERAL, reason=f"scored from boundaries: {single}"
        )
    return _unfused(general)


def _resolve_unpacked(facts: CallFacts) -> ScoringDecision:
    if facts.cp_size > 1:
        return _unfused("an unpacked batch over several ranks has no fused scorer")
    if not facts.plain_causal:
        return _unfused("no kernel rebuilds bounds that are not those of whole sequences")
    return ScoringDecision(
        plan=ScoringPlan.PLAIN_CAUSAL, reason="whole sequences, the kernel's own causal mask serves"
    )


def _why_not_single(facts: CallFacts) -> str | None:
    """Return what keeps a pack from the scorer of one sequence, None if nothing does."""
    if facts.entries_q != 1 or facts.entries_k != 1:
        return "the pack has several sequences"
    if facts.cp_size == 1:
        return "one sequence on one rank is not split into segments"
    rank_rows = facts.rows if facts.slice_of is None else facts.slice_of
    if facts.longest_q != rank_rows * facts.cp_size:
        return "rows behind the sequence, or a length that is not known on the host"
    if facts.longest_k != facts.keys or facts.longest_k != facts.longest_q:
        return "keys end elsewhere than queries"
    if rank_rows % 2:
        return "an odd number of local rows has no two equal halves"
    return None


def _why_not_general(facts: CallFacts) -> str | None:
    """Return what keeps a pack from the THD kernel, None if nothing does."""
    if facts.entries_q is None or facts.entries_q != facts.entries_k:
        return "queries and keys have no boundaries of equal number"
    if facts.longest_q is None or facts.longest_k is None:
        return "the longest sequence is not known on the host"
    if facts.batch != 1:
        return "a packed batch of several entries"
    if facts.slice_of is not None:
        return "the rank has a tensor-parallel slice of its rows, which boundaries do not describe"
    return None


def _decline(reason: str) -> ScoringDecision:
    return ScoringDecision(plan=ScoringPlan.DECLINE, reason=reason)


def _unfused(reason: str) -> ScoringDecision:
    return ScoringDecision(plan=ScoringPlan.UNFUSED_BOUNDS, reason=reason)


def report_once(decision: ScoringDecision, said: set[str], logger: logging.Logger) -> str | None:
    """Warn of an unfused plan, once for each reason; a run that is slow on purpose says so.

    Args:
        decision: The plan taken.
        said: Reasons that were reported before; the new one is added.
        logger: Where to.

    Returns:
        The warning, None where there is nothing new to say.
    """
    if decision.plan is not ScoringPlan.UNFUSED_BOUNDS or decision.reason in said:
        return None
    said.add(decision.reason)
    text = f"DSA indexer scores come without a fused kernel: {decision.reason}."
    logger.warning(text)
    return text
