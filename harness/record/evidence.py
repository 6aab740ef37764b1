"""Typed evidence that ranks write and verdicts are computed from.

Every class here is one line kind in a rank's journal. Counts are per the rows they name; ranks are
always ``global_rank`` (of the run) or ``cp_rank`` (of the context-parallel group).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.record.autograd import AutogradEvidence
from harness.record.copies import CopyEvidence
from harness.record.graphs import GraphEvidence
from harness.record.groups import GroupEvidence
from harness.record.hook_call import HookCallEvidence
from harness.record.launches import LaunchEvidence
from harness.record.memo import MemoEvidence
from harness.record.memory import MemoryEvidence
from harness.record.perturb import PerturbEvidence
from harness.record.replay import ReplayEvidence
from harness.record.state import StateEvidence
from harness.record.timing import TimingEvidence
from harness.record.transfers import TransferEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapStats:
    """Selected keys of some rows against the exact reference, ties understood.

    Attributes:
        rows: Rows judged.
        rows_exhaustive: Of these, rows that may see at most top-k keys, so that all are due.
        due: Sum over rows of min(top-k, visible keys).
        exact: Picks that are in the reference set.
        unranked: Of these, picks whose score the kernel itself had masked to -inf: taken blindly,
            right by luck or because every visible key was due.
        tie: Picks outside it whose score equals the k-th best within the margin.
        below: Visible picks whose score is below the k-th best by more than the margin, or that are
            level with it while a clearly better key was left out.
        future: Picks in the row's own sequence past its causal limit.
        foreign: Picks of another sequence's keys (or of padding no row may see).
        missing: Slots that should hold a key and hold none.
        duplicate: Repeated picks within a row.
        out_of_range: Picks outside the key tensor.
        largest_gap: Greatest score by which a ``below`` pick misses the k-th best or, when level
            with it, the best key left out.
    """

    rows: int
    rows_exhaustive: int = 0
    due: int = 0
    exact: int = 0
    unranked: int = 0
    tie: int = 0
    below: int = 0
    future: int = 0
    foreign: int = 0
    missing: int = 0
    duplicate: int = 0
    out_of_range: int = 0
    largest_gap: float = 0.0

    @property
    def overlap(self) -> float:
        """(exact + tie) / due; 1.0 where nothing is due."""
        return 1.0 if self.due == 0 else (self.exact + self.tie) / self.due

    @property
    def strict_overlap(self) -> float:
        """Exact picks that the kernel ranked, over due; 1.0 where nothing is due.

        No credit for ties, and none for keys that the kernel took blindly among masked ones.
        """
        return 1.0 if self.due == 0 else (self.exact - self.unranked) / self.due

    @property
    def num_out_of_bounds(self) -> int:
        """Picks that no row may ever hold: another sequence's, future, or outside the tensor."""
        return self.future + self.foreign + self.out_of_range

    @property
    def num_wrong(self) -> int:
        """Picks that are neither exact nor tie, plus the missing ones."""
        return self.below + self.num_out_of_bounds + self.duplicate + self.missing

    def __add__(self, other: OverlapStats) -> OverlapStats:
        """Merge the statistics of two disjoint sets of rows."""
        counts = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__slots__
            if name != "largest_gap"
        }
        return OverlapStats(**counts, largest_gap=max(self.largest_gap, other.largest_gap))


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapSlice:
    """Overlap of a part of a rank's rows: one sequence, one zigzag half, or one distance band."""

    name: str
    """Such as ``sequence 2``, ``front``, ``back`` or ``distance 256..511``."""
    stats: OverlapStats


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFinding:
    """One row shown in full because its selection is wrong (a few per rank are kept)."""

    row: int
    """Local row of the rank."""
    position: int
    """Row's position inside its own sequence."""
    sequence: int
    """Index of the row's sequence in the pack."""
    limit: int
    """Number of keys the row may see."""
    picked: tuple[int, ...]
    """Picked keys, relative to the start of the row's sequence, first 16 at most."""
    wrong: tuple[int, ...]
    """Of these the wrong ones, first 16 at most."""
    due: tuple[int, ...]
    """Reference keys that were not picked, first 16 at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionEvidence:
    """Selected keys of one rank, microbatch, layer and seed, judged at one stage.

    Attributes:
        stage: ``wrapper`` (what the top-k kernel returned) or ``final`` (what attention was given).
        reference_dtype: ``fp32`` or ``fp64``.
        rows_sampled: Rows judged when only a sample was asked for, else None.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    stage: str
    topk: int
    reference_dtype: str
    total: OverlapStats
    by_sequence: tuple[OverlapSlice, ...] = ()
    by_half: tuple[OverlapSlice, ...] = ()
    by_distance: tuple[OverlapSlice, ...] = ()
    worst_rows: tuple[RowFinding, ...] = ()
    rows_sampled: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowEvidence:
    """How many keys the scoring kernel left each row to see, against the row's limit.

    Attributes:
        rows: Valid rows compared.
        rows_equal: Rows whose window is their limit.
        rows_short: Rows from which visible keys were hidden.
        rows_long: Rows that were shown keys past their limit.
        first_different: Local row of the first row that differs.
        window: Keys shown to that row.
        limit: Keys due to be shown to it.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    rows: int
    rows_equal: int
    rows_short: int
    rows_long: int
    first_different: int | None = None
    window: int | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetEvidence:
    """Causal offsets of one scoring-kernel call, one per segment that has rows.

    Attributes:
        call: Number of the call within its layer, from 0.
        due: Position of each segment's first row inside its sequence, by ``harness.layout``.
        cropped: What the caller's key crop amounts to: ``k_length * ratio - q_length``.
        given: ``q_causal_offsets`` as passed, None when the caller passed none.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    call: int
    due: tuple[int, ...]
    cropped: tuple[int, ...]
    given: tuple[int, ...] | None = None

    @property
    def forgotten(self) -> bool:
        """True when an offset is due and none was passed."""
        return self.given is None and any(self.due)

    @property
    def right(self) -> bool:
        """True when the offsets in effect, passed or left at 0, are the ones due."""
        return (self.given or (0,) * len(self.due)) == self.due


@dataclass(frozen=True, kw_only=True, slots=True)
class BehaviourEvidence:
    """Whether a rank's picks equal what a named faulty behaviour predicts, ties understood.

    Attributes:
        name: The behaviour, such as ``chunk_local_window``.
        rows: Rows checked.
        rows_matching: Rows whose picks the prediction explains.
        rows_telling: Rows for which right and faulty behaviour differ.
        rows_exhaustive: Rows whose limit is at most top-k.
        rows_exhaustive_exact: Of these, rows whose picks are exactly the visible keys.
        rows_beyond_window: Rows, limit above top-k, that picked a finite-score key beyond their
            chunk-local window.
        first_mismatch: Local row of the first row that the prediction does not explain.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    name: str
    rows: int
    rows_matching: int
    rows_telling: int
    rows_exhaustive: int = 0
    rows_exhaustive_exact: int = 0
    rows_beyond_window: int = 0
    first_mismatch: int | None = None

    @property
    def holds(self) -> bool:
        """True when the prediction explains every row."""
        return self.rows == self.rows_matching


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFacts:
    """Shape, dtype and storage of a tensor handed to a hook or kernel.

    Attributes:
        address: Address of its first element, 0 where it has no memory of its own.
        shares: Tensor of the dispatcher's caller whose memory this is, such as ``q`` or
            ``part of k``; empty for other memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    contiguous: bool = True
    address: int = 0
    shares: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallEvidence:
    """One call of a hook or kernel, in the order of its rank's journal.

    Attributes:
        symbol: Short name from the hook table, such as ``indexer_forward``.
        origin: ``megatron``, ``hardware`` or ``modelled``.
        result: ``tensor``, ``none`` (declined) or ``error``.
        facts: Scalars worth keeping (top_k, chunk rows, offsets given or due).
    """

    symbol: str
    origin: str
    microbatch: int
    layer: int
    seed: int
    result: str
    tensors: tuple[TensorFacts, ...] = ()
    facts: dict[str, int | float | str | bool | None] = field(default_factory=dict)


SHARED_PLAN = "shared"
"""Plan of a layer that scores nothing and attends with an earlier layer's picks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathEvidence:
    """Which path one forward took on one rank.

    Attributes:
        backend: ``dsa_kernel_backend`` as configured.
        plan: One of the five canonical plan names, read from the build or inferred from calls;
            ``none`` where no fused backend is configured, ``shared`` where the layer attends with
            an earlier layer's picks, ``unknown`` when no hook of the table was reached.
        plan_source: ``build`` or ``inferred``.
        reason: Why, in the build's words or from the inference.
        scorer: Inner scorer that ran.
        fused: Whether a fused scorer produced the selection.
        calls: Number of calls per symbol of the hook table.
        build_plan: Plan in the build's own spelling, None where it names none.
        ran: Canonical plan that the calls amount to; differs from ``plan`` only where the build
            names one plan and runs another.
        right_plan: Plan that the layout calls for, by ``harness.layout``; empty where no fused
            backend is configured.
        right_reason: The condition that decided ``right_plan``.
        dispatched: Dispatcher hook that was asked to what it returned: ``tensor``, ``none`` or
            ``error``.
        shares: Parameter of the first scoring kernel call to the caller's tensor whose memory it
            was given; empty for a copy.
        compiles: Kernel to the distinct keys that its calls would be compiled under.
        new_compiles: Of these, keys that the process had not met before.
        diagnostics: Warnings that the build gave about its path.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    backend: str
    plan: str
    plan_source: str
    reason: str
    scorer: str
    fused: bool
    calls: dict[str, int] = field(default_factory=dict)
    build_plan: str | None = None
    ran: str = ""
    right_plan: str = ""
    right_reason: str = ""
    dispatched: dict[str, str] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)
    compiles: dict[str, int] = field(default_factory=dict)
    new_compiles: dict[str, int] = field(default_factory=dict)
    diagnostics: tuple[str, ...] = ()


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
