"""Kinds of fault that a report may be of: why each comes into question, and what tells it apart.

A sign is a line, or arithmetic over what lines say. Signs of the fault itself weigh more than those
of a configuration that merely allows it; a kind without a sign is not named.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.repro.intake.facts import Fact

SHOWN, ALLOWED = 2, 1
"""Weight of what a fault shows, and of what a configuration allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """One reason.

    Attributes:
        facts: What it rests on.
    """

    weight: int
    reason: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        scenarios: Folder or file of the tree to run.
        tells: What its outcome says.
    """

    number: int
    title: str
    scenarios: str
    tells: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A kind that comes into question, the strongest reason first."""

    kind: Kind
    signs: tuple[Sign, ...]

    @property
    def weight(self) -> tuple[int, int]:
        """Strongest reason, then all of them."""
        return max(sign.weight for sign in self.signs), sum(sign.weight for sign in self.signs)


_CATALOGUE = "scenarios/catalogue"


def _kind(number: int, title: str, folder: str, tells: str) -> Kind:
    scenarios = folder if folder.startswith("scenarios/") else f"{_CATALOGUE}/{folder}"
    return Kind(number=number, title=title, scenarios=scenarios, tells=tells)


KINDS = {
    kind.number: kind
    for kind in (
        _kind(
            1,
            "an offset of row times stride that leaves 32 bits",
            "int32-addresses",
            "the case just below the limit passes and the one just above it does not",
        ),
        _kind(
            2,
            "causal limits counted from the wrong row: each chunk sees a window of its own",
            "scenarios/releases",
            "with the overlay causal_offsets the same packs are selected right",
        ),
        _kind(
            3,
            "masked scores that are not minus infinity",
            "masked-cells",
            "fails on one, on and past the edge of a tile of 64 keys only",
        ),
        _kind(
            4,
            "scores outside the range that the selection can bin: very low, NaN, infinite",
            "score-range",
            "the same packs with values.scores normal pass, with underflow they do not",
        ),
        _kind(
            5,
            "more candidates or ties than a buffer holds",
            "candidates",
            "plateaus below the size of the buffer pass, larger ones lose keys",
        ),
        _kind(
            6,
            "ties and slots in an order that changes from run to run",
            "tie-order",
            "nondeterministic, while every single selection is right with ties understood",
        ),
        _kind(
            7,
            "a top-k that does not fit: larger than the keys, odd, or of another width",
            "topk-width",
            "passes as soon as top-k is at most the keys, or as wide as every key",
        ),
        _kind(
            8,
            "an id that is no key: -1, past the end, of another batch",
            "id-aliasing",
            "equal gradients with -1 in the same slots mean that ids are checked",
        ),
        _kind(
            9,
            "sequences of no length, or rows without a key",
            "empty-rows",
            "the same pack without its empty entries passes",
        ),
        _kind(
            10,
            "padding rows that are taken for real ones",
            "padding-rows",
            "the same pack with lengths that need no padding passes",
        ),
        _kind(
            11,
            "boundaries mixed up: real for padded, of queries for those of keys",
            "boundary-lists",
            "picks of the neighbouring sequence at its boundary",
        ),
        _kind(
            12,
            "tokens cut one way and put together another",
            "layout-order",
            "slice, gather and reorder do not give the pack back",
        ),
        _kind(
            13,
            "lengths that 2 * CP (* TP) does not divide",
            "divisibility",
            "refused with both numbers; padded up it passes",
        ),
        _kind(
            14,
            "positions of a pack wrong under CP",
            "positions",
            "passes at CP 1 and for the first sequence of a pack",
        ),
        _kind(
            15,
            "the group of Dynamic CP not passed on or not put back",
            "scenarios/dynamic_cp",
            "wrong in the microbatch behind one of another size only",
        ),
        _kind(
            16,
            "tables or picks of another microbatch served again",
            "scenarios/history",
            "each microbatch passes when it runs alone",
        ),
        _kind(
            17,
            "a kernel compiled anew for every pack",
            "compile-keys",
            "the number of compiled kernels grows with the packs",
        ),
        _kind(
            18,
            "a path that quietly is not the fused one",
            "scorer-dispatch",
            "wrong_path, with the reason that the dispatcher gives",
        ),
        _kind(
            19,
            "one rank that waits for its device while the others wait in a collective",
            "host-sync",
            "hang, with the rank that is late and where",
        ),
        _kind(
            20,
            "CUDA graphs that capture or replay packed metadata",
            "graphs",
            "eager passes; capture fails, or the second replay differs",
        ),
        _kind(
            21,
            "a score matrix or scratch that does not fit",
            "memory",
            "the peak follows rows times keys, and falls with kernels.score_chunk_bytes",
        ),
        _kind(
            22,
            "an error that shows late, under another kernel's name",
            "late-errors",
            "the phase of the fault in the record is not the one in the traceback",
        ),
        _kind(
            23,
            "loss and gradients of the wrong scale under CP",
            "loss-scale",
            "values held against CP 1 differ by a factor of the CP size",
        ),
        _kind(
            24,
            "one architecture or number of heads only",
            "one-architecture",
            "passes with 32 or 64 heads, or on the other architecture",
        ),
    )
}
"""Those a run can show; the 25th is a check that cannot fail, which no run shows."""
