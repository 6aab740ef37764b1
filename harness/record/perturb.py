"""Evidence of a production call one fact of which was broken on purpose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PerturbEvidence:
    """What was broken in one call on one rank, and how far the build let the call come.

    Attributes:
        fact: Name of the perturbation.
        call: Dispatcher hook whose arguments were changed, or function whose result was.
        arguments: Names of the arguments changed; empty where the result was.
        change: What they were, and what they became.
        kernels: Kernel wrappers called from then on, each once, in order of first call.
        declined: True when the call gave nothing back, so that the caller fell back.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    fact: str
    call: str
    arguments: tuple[str, ...]
    change: str
    kernels: tuple[str, ...] = ()
    declined: bool = False
