"""What was selected, held against the exact reference: overlap, rows, windows, offsets."""

from __future__ import annotations

from dataclasses import dataclass


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
