"""The sections of the version-1 scenario file as strict pydantic models.

Keys are Megatron's own names. Defaults equal those of ``harness.scenario.spec`` (a test holds
that), so that a section left out and a section left empty mean the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, create_model

from harness.record.deviation import DeviationKind
from harness.record.phase import Phase
from harness.record.verdict import Verdict
from harness.scenario import call_sections as c
from harness.scenario import fields as f
from harness.scenario.facts import FACTS
from harness.scenario.names import BOUNDARIES


class ModelFields(f.Section):
    """Geometry of the layers, by the names of Megatron's ``MLATransformerConfig``."""

    source: list[f.Link] = Field(default=[])
    """Where the numbers come from."""
    num_layers: f.Size = 1
    """Transformer layers at level ``model``; the other levels build one."""
    hidden_size: f.Size = 256
    ffn_hidden_size: f.Size = 512
    """Width of the dense multi-layer perceptron."""
    num_attention_heads: f.Size = 64
    q_lora_rank: f.Size = 128
    kv_lora_rank: f.Size = 512
    """The fused attention takes 512 only."""
    qk_head_dim: f.Size = 128
    """Head dimension without position embedding."""
    qk_pos_emb_head_dim: f.Size = 64
    """The fused attention takes 64 only."""
    v_head_dim: f.Size = 128
    vocab_size: f.Size = 512
    rotary_base: f.PositiveFloat = 10000.0
    layernorm_epsilon: f.PositiveFloat = 1e-6
    dsa_indexer_n_heads: f.Size = 32
    dsa_indexer_head_dim: f.Size = 128
    """The cuDNN scoring kernels take 128 only."""
    dsa_indexer_topk: f.Size = 16
    dsa_indexer_topk_freq: f.Size = 1
    """Above 1, layers share the picks of a computing layer."""
    dsa_indexer_skip_topk_offset: Annotated[int, Field(ge=0)] = 0
    dsa_indexer_rope_interleaved: bool = False
    dsa_indexer_rotate_activation: bool = False
    """True needs ``fast_hadamard_transform``."""
    dsa_indexer_scoring_relu: bool = True


class ModelMapping(ModelFields):
    """A model given in place, alone or as changes to a named one."""

    base: f.Word | None = None
    """Name of a file in ``configs/models`` whose fields hold where none is given here."""
    name: f.Line | None = None
    """Name in reports; default is the base's name, with ``+`` when a field differs."""


class Modelled(f.Section):
    """Which release and architecture the kernel models follow."""

    cudnn_frontend: f.Release = "1.32.0"
    """Release in quotes, such as "1.26.0"."""
    arch: f.Arch = "sm100"
    defects: Annotated[
        Annotated[Literal["as_released", "none"], f.WORD]
        | Annotated[list[f.Defect], Field(min_length=1), AfterValidator(f.unique), f.LIST],
        f.WORD_OR_LIST,
    ] = "as_released"
    """Known defects: those the release has, none, or a list of names."""


class Kernels(f.Section):
    """Backend of the scorer and where its kernels come from."""

    dsa_kernel_backend: Literal["none", "cudnn", "tilelang"] = "none"
    source: Literal["auto", "hardware", "modelled"] = "auto"
    """``auto``: hardware where there is a GPU, modelled where there is none."""
    modelled: Modelled = Modelled()
    score_chunk_bytes: f.Size | None = None
    """Lowers the caller's score budget, so that one half spans several row chunks."""
    third_party_hook: c.ThirdPartyHook = c.ThirdPartyHook()


class Parallel(f.Section):
    """Configured parallel sizes."""

    context_parallel_size: f.GroupSize = 1
    dynamic_context_parallel: bool = False
    """Lets a microbatch have an effective CP size of its own (its key ``cp``)."""
    tensor_model_parallel_size: f.GroupSize = 1
    sequence_parallel: bool = False
    cp_comm_type: Literal["allgather", "all_gather", "p2p", "a2a", "a2a+p2p"] = "allgather"
    """DSA with CP takes ``allgather`` (also spelled ``all_gather``) only."""
    cp_ranks: f.Ranks = "all"
    """Level ``scorer``: which logical CP ranks to run."""


class Microbatch(f.Section):
    """One pack (``thd``) or batch (``sbhd``); lengths are whole-sequence tokens, before CP."""

    sequences: Annotated[list[f.Length], Field(min_length=1)]
    """Real query lengths; zeros and repeats allowed."""
    padded: f.AutoOrLengths = "auto"
    """``auto`` pads each up to a multiple of 2 * cp; or the padded lengths."""
    kv_sequences: list[f.Length] | None = None
    """Real key lengths where they differ from the query's."""
    kv_padded: f.AutoOrLengths = "auto"
    tail_padding: f.Length = 0
    """Rows behind the last sequence that no sequence owns, over the whole group."""
    cp: f.GroupSize | None = None
    """Effective CP size of this microbatch, under Dynamic CP."""
    key_positions: Literal["derived", "explicit"] = "derived"
    """``explicit`` hands the scorer custom key positions, which it must decline."""
    qkv_format: Literal["thd", "sbhd"] = "thd"
    real_token_mask_q: bool = False
    """Hands Megatron the mask of real rows, so that padding counts in no loss."""
    boundaries: Annotated[str, f.OneOf("way to hand over boundaries", tuple(BOUNDARIES))] = "own"
    """How the lists of boundaries are handed over: aliases, views, types."""
    cp_group: Literal["real", "none"] = "real"
    """What a microbatch of effective CP size 1 is given: ``real``: a group of one rank; ``none``:
    no group."""
    beside: list[Annotated[list[f.Length], Field(min_length=1)]] = Field(default=[])
    """Sequences of the other parts of the ranks, which run side by side under Dynamic CP; left
    out, every part runs ``sequences``."""
    forward_only: bool = False
    """An evaluation step between training steps: no gradients and no backward."""


Level = Literal["scorer", "attention", "model", "kernel"]
Microbatches = Annotated[list[Microbatch], Field(min_length=1)]
Schedule = Annotated[list[f.Step], Field(min_length=1)]


class Values(f.Section):
    """Generated inputs. All seeds run in one process."""

    seeds: Annotated[list[f.Seed], Field(min_length=1), AfterValidator(f.unique)] = Field(
        default=[0]
    )
    scores: Literal["normal", "ties", "integers", "underflow"] = "normal"
    """``integers`` are exact in bf16, so that the margin of the comparison is zero."""
    dtype: Literal["bf16", "fp32"] = "bf16"
    strided: bool = False
    """Generated tensors are views of wider ones, twice as far apart in every dimension."""


RecomputeModule = Literal["core_attn", "mla_up_proj", "layernorm", "mlp"]


class Training(f.Section):
    """Loss and recomputation."""

    backward: bool = False
    dsa_indexer_loss_coeff: f.NonNegativeFloat = 0.0
    dsa_indexer_use_sparse_loss: bool = False
    calculate_per_token_loss: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    """Megatron's ``recompute_granularity``."""
    recompute_modules: Annotated[list[RecomputeModule], AfterValidator(f.unique)] = Field(
        default=["core_attn"]
    )
    """What ``selective`` computes again in backward."""
    recompute_method: Literal["uniform", "block"] = "uniform"
    """How ``full`` divides the layers."""
    recompute_num_layers: f.Size = 1
    """Layers of a uniform chunk, or of the block."""


GraphModule = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"]


class Graph(f.Section):
    """CUDA-graph mode."""

    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    cuda_graph_modules: Annotated[list[GraphModule], AfterValidator(f.unique)] = Field(
        default=["attn"]
    )
    replays: f.Size = 2


class Reference(f.Section):
    """What the exact reference judges, and in which precision."""

    rows: f.Rows = "all"
    """All rows, or a stratified sample of so many that always holds segment edges."""
    dtype: Literal["fp32", "fp64"] = "fp32"


class Compare(f.Section):
    """What is run again in the same processes, and held against the first run."""

    context_parallel_size: Annotated[list[f.GroupSize], AfterValidator(f.unique)] = Field(
        default=[]
    )
    """CP sizes at which the same packs run again."""
    effective_cp: Annotated[list[f.GroupSize], AfterValidator(f.unique)] = Field(default=[])
    """Effective CP sizes at which the same packs run again on parts of the configured group, as
    under Dynamic CP: the layers stay as they are, and their group is set for the microbatch and
    put back. Level attention only."""
    dtype: Literal["fp32"] | None = None
    """``fp32``: everything runs again in fp32 and is judged by the bounds of fp32."""
    launches: Annotated[
        list[Literal["again", "chunked", "grad", "alone", "interrupted"]], AfterValidator(f.unique)
    ] = Field(default=[])
    """Further launches that have to select the same keys: ``again`` as it was, ``chunked`` in
    several row chunks, ``grad`` with gradients the other way round, ``alone`` each sequence by
    itself, ``interrupted`` behind a forward that an exception inside attention ended."""


PlanName = Literal["plain_causal", "packed_single", "packed_thd", "unfused_bounds", "decline"]
VerdictName = Annotated[Verdict, Field(strict=False)]


class Expect(f.Section):
    """What a right build shows; what is left out is not checked."""

    verdict: VerdictName = Verdict.PASS
    exception: f.Line | None = None
    """Class name of the exception, where one ends the run."""
    text_has: Annotated[list[f.Line], AfterValidator(f.unique)] = Field(default=[])
    """Facts that the exception's text has to hold, such as numbers."""
    plan: PlanName | None = None
    """Scoring plan that has to be taken."""
    layout_builds_per_microbatch: Annotated[int, Field(ge=0)] | None = None
    """How often layout tables are built for one microbatch on one rank, over all layers."""
    diagnostics: Annotated[int, Field(ge=0)] | None = None
    """Warnings that the build gives about its path on rank 0, in the whole scenario."""
    host_reads_per_layer: f.EqualOrNumber | None = None
    """Times one layer's forward makes the host wait for a value or a size; ``equal``: as often in
    every layer."""
    graph_warnings: Annotated[int, Field(ge=0)] | None = None
    memory_per_microbatch: Annotated[int, Field(ge=0)] | None = None
    """Most bytes by which what a rank holds may grow for each microbatch."""
    """Warnings of packed DSA under CUDA graphs that the construction gives."""
    kernel_calls: dict[f.Word, Annotated[int, Field(ge=0)]] = Field(default={})
    """Kernel or hook name to the number of calls of one forward on one rank."""


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(
            f"'{text[:40]}' is no version specifier; write such as '>=1.26' or '>=1.24,<1.26'"
        ) from error
    if not text.strip():
        raise ValueError("an empty version specifier matches everything; remove the key")
    return text


VersionSpecifier = Annotated[str, AfterValidator(_specifier)]


class _WhenVersions(f.Section):
    """Builds a known rule is about; all conditions must hold."""

    megatron_core: VersionSpecifier | None = None
    """PEP 440 specifier over the version of megatron-core."""
    cudnn_frontend: VersionSpecifier | None = None
    """PEP 440 specifier over the modelled release, or the installed one on hardware."""
    arch: f.Arch | None = None
    source: Literal["hardware", "modelled"] | None = None
    overlays: f.Overlays | None = None
    """Active overlays; must be equal as a set."""


def _fact_field(values: tuple[Any, ...], doc: str) -> Any:
    kind: Any = bool if isinstance(values[0], bool) else Literal[values]
    return (kind | None, Field(default=None, description=doc))


When: type[_WhenVersions] = create_model(
    "When",
    __base__=_WhenVersions,
    __doc__=_WhenVersions.__doc__,
    **{name: _fact_field(fact.values, fact.doc) for name, fact in FACTS.items()},
)


class Known(f.Section):
    """What is known of particular builds, narrow, with a link."""

    when: When  # type: ignore[valid-type]
    verdict: VerdictName
    behaviour: f.Behaviour | None = Field(default=None, alias="as")
    """Faulty behaviour whose prediction the picks must equal; due for ``wrong_selection``."""
    values: Annotated[list[f.Line], AfterValidator(f.unique)] = Field(default=[])
    """Exactly those values that are wrong, under ``wrong_value`` and ``wrong_gradient``."""
    plan: PlanName | None = None
    """Plan that every layer takes."""
    deviation: DeviationKind | None = None
    """Kind of the only deviations of path or layout memo."""
    deviations: Annotated[list[DeviationKind], AfterValidator(f.unique)] = Field(default=[])
    """Kinds of exactly those deviations, where they are of several."""
    tables: Annotated[list[f.Line], AfterValidator(f.unique)] = Field(default=[])
    """Exactly those layout tables that differ."""
    phase: Annotated[Phase, Field(strict=False)] | None = None
    kernel: f.Line | None = None
    exception: f.Line | None = None
    """Class name of the exception."""
    text_has: Annotated[list[f.Line], AfterValidator(f.unique)] = Field(default=[])
    """Facts that the exception's text has to hold, such as numbers."""
    link: f.Link
    """Public report of the defect."""


class Published(f.Section):
    """A figure that others published for this case, shown beside ours and judged by nobody."""

    what: f.Line
    """What was measured, such as "overlap without offsets"."""
    value: f.Line
    """The figure in the words of its source, such as "0.02 to 0.25"."""
    link: f.Link
    """Where it was published."""


class Limits(f.Section):
    """Time limit of the phases layout to record."""

    time_s: Annotated[f.PositiveFloat, Field(le=86400)] = 60.0
    """Seconds."""
