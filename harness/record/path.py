"""Which path of the build a forward took: plans, calls, tensors."""

from __future__ import annotations

from dataclasses import dataclass, field


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
