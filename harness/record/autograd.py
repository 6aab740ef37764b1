"""Evidence on Megatron's own autograd functions: one gradient for each input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AutogradEvidence:
    """Backward calls of one autograd function in one case on one rank.

    Attributes:
        function: Class name.
        calls: Backward calls seen.
        inputs: Inputs that forward was given, in the call shown: the first wrong one, else the
            first.
        gradients: What backward returned for them.
        missing: Inputs that need a gradient and got none.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    function: str
    calls: int
    inputs: int
    gradients: int
    missing: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """True when every input has one gradient, and each that needs one has got it."""
        return self.inputs == self.gradients and not self.missing
