"""The resolved scenario: what remains after loading, matrix expansion and defaults.

Ranks get this as JSON (``harness.record.codec``), so the module is standard library only. The YAML
face of the same fields, with validation and messages, is ``harness.scenario.schema``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from harness.record.codec import dumps, to_jsonable
from harness.record.verdict import Verdict
from harness.scenario.call_spec import KernelCallSpec, PerturbSpec, ThirdPartyHookSpec
from harness.scenario.search_spec import SearchSpec

Level = Literal["scorer", "attention", "model", "kernel"]
Backend = Literal["none", "cudnn", "tilelang"]
KernelSource = Literal["auto", "hardware", "modelled"]
KeyPositions = Literal["derived", "explicit"]
PlanName = Literal["plain_causal", "packed_single", "packed_thd", "unfused_bounds", "decline"]
QkvFormat = Literal["thd", "sbhd"]
ScoreKind = Literal["normal", "ties", "integers", "underflow"]
Boundaries = Literal["own", "shared", "one", "real_only", "query_only", "strided", "int64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Geometry of the layers; names are Megatron's ``MLATransformerConfig`` fields.

    The fused path is only reached with ``dsa_indexer_head_dim`` 128, ``kv_lora_rank`` 512 and
    ``qk_pos_emb_head_dim`` 64.
    """

    name: str
    source: tuple[str, ...] = ()
    num_layers: int = 1
    hidden_size: int = 256
    ffn_hidden_size: int = 512
    num_attention_heads: int = 64
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    vocab_size: int = 512
    rotary_base: float = 10000.0
    layernorm_epsilon: float = 1e-6
    dsa_indexer_n_heads: int = 32
    dsa_indexer_head_dim: int = 128
    dsa_indexer_topk: int = 16
    dsa_indexer_topk_freq: int = 1
    dsa_indexer_skip_topk_offset: int = 0
    dsa_indexer_rope_interleaved: bool = False
    dsa_indexer_rotate_activation: bool = False
    dsa_indexer_scoring_relu: bool = True

    def source_layer(self, layer: int) -> int:
        """Return the layer whose picks a layer attends with: its own, or an earlier one's.

        Layers count from 1. Those up to ``dsa_indexer_skip_topk_offset`` (at least the first)
        pick for themselves; behind them one in ``dsa_indexer_topk_freq`` does.
        """
        behind = layer - max(self.dsa_indexer_skip_topk_offset, 1)
        return layer if behind <= 0 else layer - behind % self.dsa_indexer_topk_freq


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelledKernels:
    """Which release and architecture the models follow, and with which known defects.

    Attributes:
        defects: ``as_released``, ``none``, or names of defects to switch on.
    """

    cudnn_frontend: str = "1.32.0"
    arch: Literal["sm90", "sm100"] = "sm100"
    defects: Literal["as_released", "none"] | tuple[str, ...] = "as_released"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelsSpec:
    """Backend of the scorer and where its kernels come from."""

    dsa_kernel_backend: Backend = "none"
    source: KernelSource = "auto"
    modelled: ModelledKernels = field(default_factory=ModelledKernels)
    score_chunk_bytes: int | None = None
    third_party_hook: ThirdPartyHookSpec = field(default_factory=ThirdPartyHookSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelSpec:
    """Configured parallel sizes; a microbatch's ``cp`` may differ under Dynamic CP."""

    context_parallel_size: int = 1
    dynamic_context_parallel: bool = False
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    cp_comm_type: str = "allgather"
    cp_ranks: Literal["all"] | tuple[int, ...] = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchSpec:
    """One pack (``thd``) or batch (``sbhd``); lengths are whole-sequence tokens, before CP.

    Attributes:
        sequences: Real query lengths; zeros and repeats allowed. In ``sbhd`` all are equal and
            their number is the micro-batch size.
        padded: ``auto`` (each up to a multiple of 2 * cp) or explicit padded query lengths.
        kv_sequences: Real key lengths when they differ from the query's.
        kv_padded: Explicit padded key lengths; ``auto`` pads ``kv_sequences`` alike.
        tail_padding: Rows behind the last sequence that no sequence owns, over the whole group.
        cp: Effective CP size, None for the configured one.
        key_positions: ``explicit`` hands the scorer custom key positions, which must be declined.
        real_token_mask_q: Hands Megatron the mask of real rows, so that padding counts in no loss.
        boundaries: How the lists of boundaries are handed over: each a tensor of its own, or
            aliases, views and types of ``harness.scenario.names.BOUNDARIES``.
        cp_group: ``none`` gives a microbatch of effective size 1 no group at all, ``real`` a group
            of one rank.
        beside: Sequences of the other parts of the ranks that run side by side with this one's;
            empty: every part runs ``sequences``.
        forward_only: An evaluation step between training steps: no gradients, no backward.
    """

    sequences: tuple[int, ...]
    padded: Literal["auto"] | tuple[int, ...] = "auto"
    kv_sequences: tuple[int, ...] | None = None
    kv_padded: Literal["auto"] | tuple[int, ...] = "auto"
    tail_padding: int = 0
    cp: int | None = None
    key_positions: KeyPositions = "derived"
    qkv_format: QkvFormat = "thd"
    real_token_mask_q: bool = False
    boundaries: Boundaries = "own"
    cp_group: Literal["real", "none"] = "real"
    beside: tuple[tuple[int, ...], ...] = ()
    forward_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuesSpec:
    """Generated inputs. All seeds run in one child.

    Attributes:
        scores: ``normal``: standard normal inputs. ``ties``: few distinct values, so that many
            scores are equal. ``integers``: small integers, exact in bf16, so that the reference
            margin is zero. ``underflow``: large negative weights, scores below the fp16 minimum.
        strided: Generated tensors are views of wider ones, so that no dimension is dense.
    """

    seeds: tuple[int, ...] = (0,)
    scores: ScoreKind = "normal"
    dtype: Literal["bf16", "fp32"] = "bf16"
    strided: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpec:
    """Loss and recomputation.

    Attributes:
        recompute: Megatron's ``recompute_granularity``.
        recompute_modules: What ``selective`` computes again.
        recompute_method: How ``full`` divides the layers: ``uniform`` chunks of
            ``recompute_num_layers``, or a ``block`` of so many single layers.
    """

    backward: bool = False
    dsa_indexer_loss_coeff: float = 0.0
    dsa_indexer_use_sparse_loss: bool = False
    calculate_per_token_loss: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: tuple[str, ...] = ("core_attn",)
    recompute_method: Literal["uniform", "block"] = "uniform"
    recompute_num_layers: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSpec:
    """CUDA-graph mode."""

    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    cuda_graph_modules: tuple[str, ...] = ("attn",)
    replays: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceSpec:
    """Rows the reference judges (``all`` or a stratified sample of that many) and its dtype."""

    rows: Literal["all"] | int = "all"
    dtype: Literal["fp32", "fp64"] = "fp32"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareSpec:
    """What is run again in the same processes, and held against the first run.

    Attributes:
        context_parallel_size: CP sizes at which the same packs run again.
        effective_cp: Effective CP sizes at which they run again while the configured one stays, as
            Dynamic CP gives a microbatch a part of the group.
        dtype: ``fp32``: everything runs again in fp32 and is judged by the bounds of fp32.
        launches: Further launches of the same pack, names of ``harness.record.launches``.
    """

    context_parallel_size: tuple[int, ...] = ()
    effective_cp: tuple[int, ...] = ()
    dtype: Literal["fp32"] | None = None
    launches: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectSpec:
    """What a right build shows; None fields are not checked.

    Attributes:
        exception: Class name of the exception that the first faulty rank raises.
        text_has: Facts that the exception's text has to hold, such as ``seq_len=61``.
    """

    verdict: Verdict = Verdict.PASS
    exception: str | None = None
    text_has: tuple[str, ...] = ()
    plan: PlanName | None = None
    layout_builds_per_microbatch: int | None = None
    diagnostics: int | None = None
    host_reads_per_layer: Literal["equal", "first_layer"] | int | None = None
    graph_warnings: int | None = None
    memory_per_microbatch: int | None = None
    kernel_calls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRule:
    """What is known of particular builds, narrow, with a link.

    Attributes:
        when: Condition name to requirement. Probed facts take booleans or strings;
            ``megatron_core`` and ``cudnn_frontend`` take version specifiers (PEP 440) over the
            effective version; ``arch`` and ``source`` take strings; ``overlays`` takes a list
            that must be equal as a set.
        behaviour: Faulty behaviour whose prediction the picks must equal (YAML key ``as``).
        values: Names of exactly those values that are beyond their tolerance.
        plan: Canonical plan that every layer takes.
        deviation: Kind of the only deviations of path or layout memo.
        deviations: Kinds of exactly those deviations, where they are of several.
        tables: Names of exactly those layout tables that differ.
        text_has: Facts that the exception's text has to hold.
    """

    when: dict[str, bool | str | tuple[str, ...]]
    verdict: Verdict
    behaviour: str | None = None
    values: tuple[str, ...] = ()
    plan: PlanName | None = None
    deviation: str | None = None
    deviations: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    phase: str | None = None
    kernel: str | None = None
    exception: str | None = None
    text_has: tuple[str, ...] = ()
    link: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A figure that others published for this case, shown beside ours and judged by nobody.

    Attributes:
        what: What was measured, such as ``overlap without offsets``.
        value: The figure in the words of its source, such as ``0.02 to 0.25``.
        link: Where it was published.
    """

    what: str
    value: str
    link: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsSpec:
    """Time limit of the phases layout to record, in seconds."""

    time_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One named, fully resolved scenario."""

    id: str
    summary: str
    source: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    model: ModelSpec
    level: Level = "attention"
    kernels: KernelsSpec = field(default_factory=KernelsSpec)
    overlays: tuple[str, ...] = ()
    parallel: ParallelSpec = field(default_factory=ParallelSpec)
    microbatches: tuple[MicrobatchSpec, ...]
    schedule: tuple[str, ...] | None = None
    values: ValuesSpec = field(default_factory=ValuesSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    graph: GraphSpec = field(default_factory=GraphSpec)
    kernel_call: KernelCallSpec = field(default_factory=KernelCallSpec)
    perturb: PerturbSpec = field(default_factory=PerturbSpec)
    reference: ReferenceSpec = field(default_factory=ReferenceSpec)
    compare: CompareSpec = field(default_factory=CompareSpec)
    expect: ExpectSpec = field(default_factory=ExpectSpec)
    known: tuple[KnownRule, ...] = ()
    published: tuple[Published, ...] = ()
    limits: LimitsSpec = field(default_factory=LimitsSpec)
    inject: tuple[str, ...] = ()
    search: SearchSpec = field(default_factory=SearchSpec)
    repeat: int = 1

    @property
    def num_ranks(self) -> int:
        """Real ranks needed; at scorer level any number serves, logical ranks are shared out."""
        if self.level == "scorer":
            return 1
        effective = [mb.cp or self.parallel.context_parallel_size for mb in self.microbatches]
        cp_size = max([self.parallel.context_parallel_size, *effective])
        return cp_size * self.parallel.tensor_model_parallel_size

    @property
    def logical_cp_ranks(self) -> tuple[int, ...]:
        """Context-parallel ranks that are run."""
        if self.parallel.cp_ranks == "all":
            return tuple(range(self.parallel.context_parallel_size))
        return self.parallel.cp_ranks

    @property
    def content_hash(self) -> str:
        """First 12 hex digits of SHA-256 over what is run (not over what is said of it)."""
        run = to_jsonable(self)
        for said in _SAID:
            del run[said]
        return hashlib.sha256(dumps(run).encode()).hexdigest()[:12]


_SAID = ("expect", "known", "published", "summary", "source", "tags", "search", "repeat")
"""Keys of a scenario that change nothing of what is run."""
