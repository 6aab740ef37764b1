"""Graph evidence: how ready a configuration is for CUDA graphs, and what was tried of it."""

from __future__ import annotations

from dataclasses import dataclass

CAPTURED, FAILED, NOT_RUN = "captured", "failed", "not_run"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphWarning:
    """One text that constructing the configuration warned with.

    Attributes:
        category: Class of the warning, or ``log`` for a line of a logger.
        count: How often it came in one construction.
        about_packed_dsa: Whether it is the one that the public contract asks for.
    """

    text: str
    category: str
    count: int
    about_packed_dsa: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphBlocker:
    """A line that a capture would stop at, as far as an eager forward shows it: a prediction."""

    operation: str
    kind: str
    site: str
    function: str
    phase: str
    layer: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphReplay:
    """One replay against an eager forward of the same pack.

    Attributes:
        pack: Lengths of its sequences.
        rows: Rows compared.
        rows_different: Of these, rows in which some slot holds another key.
        output_difference: Greatest difference of an output element.
        first_different: First such row, None where there is none.
    """

    pack: tuple[int, ...]
    rows: int
    rows_different: int
    output_difference: float
    first_different: int | None = None

    @property
    def equal(self) -> bool:
        """Whether every slot and every output element is the same."""
        return self.rows_different == 0 and self.output_difference == 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphEvidence:
    """Graph readiness of one microbatch's configuration on one rank.

    Attributes:
        modules: ``cuda_graph_modules``; empty for the whole layer or iteration.
        constructs: Whether Megatron's configuration was built.
        refusal: What it raised instead, with its class; else empty.
        warnings: What it warned with.
        warnings_due: Warnings about packed DSA that the public contract asks for.
        eager: Whether the eager forward before a capture ended well.
        blockers: Lines that a capture would stop at, predicted.
        capture: ``captured``, ``failed`` or ``not_run``.
        reason: Why it was not run, or what it failed with.
        replays: Replays with other packs of the same capacity.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    seed: int
    backend: str
    impl: str
    modules: tuple[str, ...]
    dynamic_cp: bool
    cp_size: int
    constructs: bool
    refusal: str = ""
    warnings: tuple[GraphWarning, ...] = ()
    warnings_due: int = 0
    eager: bool = False
    blockers: tuple[GraphBlocker, ...] = ()
    capture: str = NOT_RUN
    reason: str = ""
    replays: tuple[GraphReplay, ...] = ()

    @property
    def num_warned(self) -> int:
        """Warnings about packed DSA that came."""
        return sum(warning.count for warning in self.warnings if warning.about_packed_dsa)
