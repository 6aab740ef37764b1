"""Launch evidence: another forward of the same tokens, which should select the same keys."""

from __future__ import annotations

from dataclasses import dataclass

AGAIN, CHUNKED, GRAD, ALONE = "again", "chunked", "grad", "alone"
INTERRUPTED = "interrupted"

LAUNCHES = {
    AGAIN: "the same forward once more",
    CHUNKED: "with a score budget that makes several row chunks of it",
    GRAD: "with gradients, or without, the other way round",
    ALONE: "each sequence of the pack in a pack of its own",
    INTERRUPTED: "once more behind a forward that an exception inside attention ended",
}
"""How a pack is launched again, and what that means."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEvidence:
    """One layer of a further launch against the first one, on one rank.

    Attributes:
        launch: Name from ``LAUNCHES``.
        rows: Real rows compared.
        rows_different: Of these, rows with other keys.
        rows_tied: Of these, rows in which the other keys score the same.
        first_different: Local row of the first one that is no tie.
        calls: Calls of the scoring kernel in the first launch and in this one.
        output_compared: Whether outputs were compared: where no row differs.
        output_difference: Greatest difference of an output element.
        gradient_difference: Greatest difference of an element of output and gradients between two
            trainings of this launch; None where nothing was trained twice.
        why_not: Why this launch says nothing here; empty where it ran.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    launch: str
    rows: int = 0
    rows_different: int = 0
    rows_tied: int = 0
    first_different: int | None = None
    calls: tuple[int, int] = (0, 0)
    output_compared: bool = False
    output_difference: float = 0.0
    gradient_difference: float | None = None
    why_not: str = ""

    @property
    def equal(self) -> bool:
        """Whether the launch gave the same keys, ties understood, and repeated its output.

        Only the same forward promises the same bits; the others take other paths to the values.
        """
        same = self.rows_different == self.rows_tied
        repeats = self.launch != AGAIN or not self.output_compared or self.output_difference == 0.0
        return same and repeats and not self.gradient_difference
