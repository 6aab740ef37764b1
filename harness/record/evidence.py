"""Typed evidence that ranks write and verdicts are computed from.

Every class here is one line kind in a rank's journal. Counts are per the rows they name; ranks are
always ``global_rank`` (of the run) or ``cp_rank`` (of the context-parallel group).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.record.autograd import AutogradEvidence
from harness.record.copies import CopyEvidence
from harness.record.graphs import GraphEvidence
from harness.record.groups import GroupEvidence
from harness.record.hook_call import HookCallEvidence
from harness.record.launches import LaunchEvidence
from harness.record.memo import MemoEvidence
from harness.record.memory import MemoryEvidence
from harness.record.path import CallEvidence, PathEvidence
from harness.record.perturb import PerturbEvidence
from harness.record.replay import ReplayEvidence
from harness.record.selection import (
    BehaviourEvidence,
    OffsetEvidence,
    SelectionEvidence,
    WindowEvidence,
)
from harness.record.state import StateEvidence
from harness.record.timing import TimingEvidence
from harness.record.transfers import TransferEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutEvidence:
    """A layout table or gathered key tensor of the build against ``harness.layout``."""

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    table: str
    """Such as ``gathered_keys``, ``query_positions``, ``starts``, ``ends``."""
    equal: bool
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueEvidence:
    """A forward or backward value against its reference."""

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    name: str
    """Such as ``attention_output`` or ``grad.query``."""
    gradient: bool
    max_abs_diff: float
    max_rel_diff: float
    tolerance_abs: float
    tolerance_rel: float
    within: bool
    reason: str
    """Why the tolerance is what it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressFaultEvidence:
    """A modelled kernel formed an address outside what it may touch.

    Attributes:
        klass: ``wrong_row``, ``past_tensor``, ``past_allocation`` or ``int32_overflow``.
        allowed: Inclusive lower and exclusive upper element offset.
    """

    kernel: str
    operand: str
    row: int
    index: int
    element_offset: int
    allowed: tuple[int, int]
    klass: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExceptionEvidence:
    """An exception that ended a rank."""

    type: str
    """Qualified class name."""
    text: str
    traceback: str
    origin: str
    """``build`` (raised inside Megatron or a kernel), ``harness`` or ``injected``."""
    declined: bool = False
    """True when Megatron or a kernel wrapper raised it by a statement of its own: a refusal."""
    in_collective: bool = False
    """True when it came out of a collective: mostly the echo of another rank's fault."""
    cuda_error: int | None = None
    out_of_memory: bool = False
    compile_failure: bool = False
    """True when a kernel did not compile."""
    kernel_hang: bool = False
    """True when a modelled kernel would wait for ever where the real one does."""
    address_fault: AddressFaultEvidence | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteEvidence:
    """A fact worth showing that is no check, such as a shim in use or a missing capability."""

    topic: str
    text: str


NEVER_STRUCK = "injection that never struck"
"""Topic of the note on a planted fault that did not happen, or not in this microbatch."""


Evidence = (
    SelectionEvidence
    | WindowEvidence
    | OffsetEvidence
    | BehaviourEvidence
    | CallEvidence
    | PathEvidence
    | LayoutEvidence
    | ValueEvidence
    | MemoEvidence
    | PerturbEvidence
    | AutogradEvidence
    | TransferEvidence
    | StateEvidence
    | LaunchEvidence
    | GraphEvidence
    | CopyEvidence
    | ReplayEvidence
    | MemoryEvidence
    | GroupEvidence
    | HookCallEvidence
    | TimingEvidence
    | ExceptionEvidence
    | NoteEvidence
)

EVIDENCE_KINDS: dict[str, type] = {
    "selection": SelectionEvidence,
    "window": WindowEvidence,
    "offset": OffsetEvidence,
    "behaviour": BehaviourEvidence,
    "call": CallEvidence,
    "path": PathEvidence,
    "layout": LayoutEvidence,
    "value": ValueEvidence,
    "memo": MemoEvidence,
    "perturb": PerturbEvidence,
    "autograd": AutogradEvidence,
    "transfer": TransferEvidence,
    "state": StateEvidence,
    "launch": LaunchEvidence,
    "graph": GraphEvidence,
    "copy": CopyEvidence,
    "replay": ReplayEvidence,
    "memory": MemoryEvidence,
    "group": GroupEvidence,
    "hook_call": HookCallEvidence,
    "timing": TimingEvidence,
    "exception": ExceptionEvidence,
    "note": NoteEvidence,
}
"""Journal line kind to record class."""


def kind_of(evidence: object) -> str:
    """Return the journal line kind of an evidence record."""
    for kind, cls in EVIDENCE_KINDS.items():
        if type(evidence) is cls:
            return kind
    raise TypeError(f"{type(evidence).__name__} is no evidence kind; add it to EVIDENCE_KINDS")
