"""The faults of the packed DSA path that hang on versions: who has them, and what to change.

Each row judges from facts first. What Megatron's caller protects from is no for a training job,
and says so; those who call the wrappers themselves find what the release does in ``docs/kernels``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.kernels.releases import Arch, Release
from harness.kernels.rules import MaskAlignment
from harness.record.verdict import Verdict

_FRONTEND = "https://github.com/NVIDIA/cudnn-frontend"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"


class Answer(NamedTuple):
    """Yes, no or (None) unknown, why, and the path where it is narrower than the row's."""

    affected: bool | None
    why: str
    path: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a fault is judged by, for one architecture.

    Attributes:
        build: Facts of ``harness.production.probes``; empty where there is no build.
        release: Row of the release table; None only for faults that look at no kernel.
        accepts_offsets: Of the installed forward wrapper, None where only the version is known.
    """

    build: Mapping[str, bool]
    release: Release | None
    arch: Arch
    accepts_offsets: bool | None

    @property
    def kernels(self) -> Release:
        """The release, of a fault that needs one."""
        assert self.release is not None, "the caller checks"
        return self.release

    @property
    def masks_top_left(self) -> bool:
        """Whether a call without offsets is masked from the top left."""
        if self.accepts_offsets is not None:
            return self.accepts_offsets
        return self.kernels.mask_alignment is MaskAlignment.TOP_LEFT

    @property
    def wrong_window(self) -> bool:
        """Whether zigzag chunks see a window at the start of their sequence."""
        return self.masks_top_left and not self.build["passes_causal_offsets"]

    def has(self, defect: str) -> bool:
        """Whether the release has a defect of ``harness.kernels.defects`` on the architecture."""
        return defect in self.kernels.defects[self.arch]

    @property
    def where(self) -> str:
        """Release and architecture, in words."""
        return f"cudnn-frontend {self.kernels.version} on {self.arch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionFault:
    """One row of the table.

    Attributes:
        kind: ``fault`` (wrong, crash, hang) or ``limit`` (slow, or not served).
        path: On which path of a training job.
        judge: From facts to an answer.
        caller: It looks at Megatron.
        kernels: It looks at the kernels' release.
        facts: The answer rests on probed facts, not on version strings alone.
        scenario: Scenario file that shows it.
        shown_by: Verdicts of a short run at level ``scorer`` that show it; empty where a run of a
            few seconds cannot decide.
    """

    name: str
    title: str
    kind: Literal["fault", "limit"] = "fault"
    path: str
    judge: Callable[[Facts], Answer]
    change: str
    link: str
    scenario: str
    caller: bool = True
    kernels: bool = True
    facts: bool = False
    shown_by: tuple[Verdict, ...] = ()


def _wrong_keys(facts: Facts) -> Answer:
    if facts.build["passes_causal_offsets"]:
        return Answer(False, "passes_causal_offsets is true: the caller says where chunks start")
    if not facts.masks_top_left:
        return Answer(False, f"{facts.where} masks bottom-right, as the caller counts on")
    return Answer(True, "passes_causal_offsets is false and the kernel masks top-left")


def _long_packs(facts: Facts) -> Answer:
    if not facts.has("d446"):
        return Answer(False, f"{facts.where} has no phantom lanes")
    if facts.wrong_window:
        return Answer(
            True,
            f"{facts.where} ranks lanes behind a row with fewer than topk finite scores, and the "
            "missing offsets give nearly every chunk such rows",
        )
    return Answer(
        True,
        f"{facts.where} ranks lanes behind a row with fewer than topk finite scores",
        "packs without CP, which are scored in torch and ranked by the kernel",
    )


def _fp16_minimum(facts: Facts) -> Answer:
    if not facts.has("d446"):
        return Answer(False, f"{facts.where} ranks scores below -65504 as it should")
    return Answer(True, f"{facts.where} puts scores below -65504 into the bucket of -inf")


def _int32(facts: Facts) -> Answer:
    if facts.has("d311"):
        return Answer(
            False,
            "the kernel has it, but Megatron's caller cuts rows at 2 GiB of scratch before it",
        )
    return Answer(False, f"{facts.where} cuts its launches itself")


def _micro_batch(facts: Facts) -> Answer:
    if facts.build["says_global_ids"]:
        return Answer(False, "says_global_ids is true: the caller says what its ids are")
    if facts.kernels.indexer_backward[facts.arch].global_only:
        return Answer(False, f"{facts.where} knows global ids only, as the caller passes")
    effect = "another entry's keys are trained" if facts.has("d550") else "they count as no key"
    return Answer(True, f"global ids are taken for local ones by {facts.where}: {effect}")


def _topk_width(facts: Facts) -> Answer:
    if facts.arch == "sm100":
        return Answer(True, f"{facts.where} asserts a multiple of 128 slots")
    return Answer(facts.has("tail_slots"), f"{facts.where} leaves the last slots uncomputed")


def _blocks(facts: Facts) -> Answer:
    if facts.has("slot_arithmetic"):
        return Answer(True, f"{facts.where} masks slot numbers as if they were a power of two")
    return Answer(False, f"{facts.where} counts slots rightly")


def _sparse_loss_compile(facts: Facts) -> Answer:
    if facts.has("d317"):
        return Answer(True, f"{facts.where} does not compile the recompute with lengths")
    return Answer(False, f"{facts.where} compiles it")


def _odd_topk(facts: Facts) -> Answer:
    if facts.has("d406"):
        return Answer(True, f"{facts.where} stores two picks at a time without a tail")
    return Answer(False, f"{facts.where} takes any topk up to 2048")


def _only_direct(defect: str, guard: str) -> Callable[[Facts], Answer]:
    """Judge a defect that Megatron's caller cannot reach."""

    def judge(facts: Facts) -> Answer:
        if facts.has(defect):
            return Answer(False, f"{facts.where} has it, but {guard}")
        return Answer(False, f"{facts.where} does not have it")

    return judge


def _no_kernels(facts: Facts) -> Answer:
    if facts.arch in facts.kernels.forward:
        return Answer(False, f"{facts.where} has scoring kernels")
    return Answer(True, f"{facts.where} refuses every scoring call")


def _fact(name: str, missing: str, there: str) -> Callable[[Facts], Answer]:
    """Judge by one fact of the build that ought to be true."""

    def judge(facts: Facts) -> Answer:
        right = facts.build[name]
        return Answer(not right, f"{name} is {str(right).lower()}: {there if right else missing}")

    return judge


_OFFSETS = (
    "switch the overlay on before the first step (from harness.overlays import causal_offsets; "
    "causal_offsets.install()), or use a Megatron that passes q_causal_offsets"
)

FAULTS: tuple[VersionFault, ...] = (
    VersionFault(
        name="wrong-keys-on-cp-chunks",
        title="Zigzag chunks pick keys from a window at the start of their sequence, silently",
        path="packed THD, CP above 1, backend cudnn, indexer loss off or sparse (plans "
        "packed_single and packed_thd): all rows but those of rank 0's front half",
        judge=_wrong_keys,
        change=_OFFSETS + "; cudnn-frontend 1.25.0 is right too, without sparse loss on sm100",
        link=f"{_FRONTEND}/pull/316",
        scenario="scenarios/releases/zigzag-single.yaml",
        facts=True,
        shown_by=(Verdict.WRONG_SELECTION, Verdict.OUT_OF_BOUNDS, Verdict.MEMORY_FAULT),
    ),
    VersionFault(
        name="illegal-address-of-long-packs",
        title="indexer_top_k reads behind its scores: illegal address, or picks out of range",
        path="packed THD, CP above 1, backend cudnn; also packs without CP, which are scored in "
        "torch and ranked by the kernel",
        judge=_long_packs,
        change="cudnn-frontend 1.27 or later (which leaves the wrong keys; those need offsets)",
        link=f"{_FRONTEND}/issues/446",
        scenario="scenarios/releases/zigzag-multi.yaml",
        shown_by=(Verdict.OUT_OF_BOUNDS, Verdict.MEMORY_FAULT),
    ),
    VersionFault(
        name="scores-below-fp16-minimum",
        title="Rows whose scores lie below -65504 pick columns past their end",
        path="every fused path with topk below the number of keys, on such scores",
        judge=_fp16_minimum,
        change="cudnn-frontend 1.27 or later",
        link=f"{_FRONTEND}/pull/410",
        scenario="scenarios/catalogue/score-range/underflow-many-rows.yaml",
        caller=False,
    ),
    VersionFault(
        name="int32-scratch",
        title="Top-k scratch offsets are formed in 32 bits over all rows of a launch",
        path="no path of Megatron's; callers of indexer_top_k_wrapper with 4096 rows of 262209",
        judge=_int32,
        change="cudnn-frontend 1.26 or later",
        link=f"{_FRONTEND}/issues/311",
        scenario="scenarios/catalogue/int32-addresses",
    ),
    VersionFault(
        name="micro-batch-ids",
        title="With sparse loss, entries behind the first get wrong indexer gradients or none",
        path="not packed (SBHD), micro-batch above 1, sparse indexer loss",
        judge=_micro_batch,
        change="micro-batch 1 or packed sequences, or a Megatron that passes topk_indices_global",
        link=f"{_FRONTEND}/pull/297",
        scenario="scenarios/public/micro-batch-two.yaml",
        facts=True,
    ),
    VersionFault(
        name="topk-width",
        title="Sparse loss over a topk that is no multiple of 128 is refused, or loses slots",
        path="sparse indexer loss where min(topk, keys) is no multiple of 128",
        judge=_topk_width,
        change="a topk, and packs, of a multiple of 128 keys",
        link=_FRONTEND,
        scenario="scenarios/public/topk-width.yaml",
    ),
    VersionFault(
        name="block-counts",
        title="The sparse loss target over 3, 5, 6 or 7 blocks of slots hangs",
        path="sparse indexer loss with topk such as 384 or 640",
        judge=_blocks,
        change="cudnn-frontend 1.31 or later, or a topk of 128, 256, 512, 1024 or 2048",
        link=_FRONTEND,
        scenario="scenarios/public/six-blocks.yaml",
        caller=False,
    ),
    VersionFault(
        name="sparse-loss-compile",
        title="The kernel of the sparse loss target does not compile",
        path="sparse indexer loss",
        judge=_sparse_loss_compile,
        change="cudnn-frontend 1.26 or later",
        link=f"{_FRONTEND}/pull/317",
        scenario="scenarios/training/sparse-loss-compile.yaml",
        caller=False,
    ),
    VersionFault(
        name="odd-topk",
        title="An odd topk above the thread count fails at compile",
        path="every fused path with an odd topk above 256, also one that the keys clamp",
        judge=_odd_topk,
        change="cudnn-frontend 1.27 or later, or an even topk and even lengths",
        link=f"{_FRONTEND}/pull/407",
        scenario="scenarios/catalogue/topk-width",
        caller=False,
    ),
    VersionFault(
        name="old-key-gradient",
        title="A caller's fp32 gradient of the keys is added to, not overwritten",
        path="no path of Megatron's; callers of indexer_backward_wrapper with d_index_k",
        judge=_only_direct("unzeroed_dk", "Megatron's caller hands over no buffer"),
        change="cudnn-frontend 1.28 or later, or zero the buffer",
        link=f"{_FRONTEND}/pull/572",
        scenario="scenarios/public/old-gradient.yaml",
    ),
    VersionFault(
        name="invalid-ids-sm90",
        title="Sparse attention backward on sm90 uses ids that are no key as addresses",
        path="no path of Megatron's; callers of sparse_attention_backward_wrapper",
        judge=_only_direct("d785", "Megatron's caller clamps ids and passes lengths"),
        change="cudnn-frontend 1.29 or later",
        link=f"{_FRONTEND}/pull/785",
        scenario="scenarios/public/id-past-keys.yaml",
    ),
    VersionFault(
        name="invalid-ids-sm100",
        title="Sparse attention backward on sm100 uses ids that are no key as addresses",
        path="no path of Megatron's; callers of sparse_attention_backward_wrapper",
        judge=_only_direct("d877", "Megatron's caller clamps ids and passes lengths"),
        change="cudnn-frontend 1.29 or later",
        link=f"{_FRONTEND}/pull/877",
        scenario="scenarios/public/id-past-keys.yaml",
    ),
    VersionFault(
        name="empty-rows",
        title="Sparse attention backward does not end on a row without keys",
        path="no path of Megatron's; callers of sparse_attention_backward_wrapper",
        judge=_only_direct("d433", "Megatron's caller takes such rows out"),
        change="cudnn-frontend 1.27 or later (sm90: 1.29)",
        link=f"{_FRONTEND}/pull/433",
        scenario="scenarios/public/empty-row.yaml",
    ),
    VersionFault(
        name="few-heads",
        title="Sparse attention backward mixes neighbouring queries unless heads fill a tile",
        path="no path of Megatron's; callers of sparse_attention_backward_wrapper on sm90",
        judge=_only_direct("d384", "Megatron's caller pads query heads to 64"),
        change="cudnn-frontend 1.27 or later",
        link=f"{_FRONTEND}/issues/384",
        scenario="scenarios/public/few-heads.yaml",
    ),
    VersionFault(
        name="no-kernels",
        title="The release has no scoring kernels for the architecture",
        path="every fused path",
        judge=_no_kernels,
        change="cudnn-frontend 1.25 or later",
        link=_FRONTEND,
        scenario="scenarios/releases/sm90-first.yaml",
        caller=False,
    ),
    VersionFault(
        name="packs-without-cp",
        title="Several packed sequences without CP are scored in torch instead of one fused call",
        kind="limit",
        path="packed THD, CP 1, several sequences",
        judge=_fact("has_scoring_plan", "the scorer is chosen by CP size", "a plan is resolved"),
        change="a Megatron with a scoring plan (pull request 6206)",
        link=f"{_MEGATRON}/pull/6206",
        scenario="scenarios/evidence/plan-many.yaml",
        kernels=False,
        facts=True,
    ),
    VersionFault(
        name="layout-per-layer",
        title="Every layer builds the layout tables anew and waits for the device",
        kind="limit",
        path="packed THD, CP above 1",
        judge=_fact("has_layout_memo", "tables are built in every layer", "tables are kept"),
        change="a Megatron with a layout memo (pull request 6206)",
        link=f"{_MEGATRON}/issues/6392",
        scenario="scenarios/evidence/memo-model.yaml",
        kernels=False,
        facts=True,
    ),
    VersionFault(
        name="dynamic-cp",
        title="Dynamic CP is not served",
        kind="limit",
        path="dynamic_context_parallel",
        judge=_fact("has_dynamic_cp", "the configuration does not know it", "it is known"),
        change="Megatron's dev branch, or static CP",
        link=f"{_MEGATRON}/pull/6206",
        scenario="scenarios/evidence/dynamic-cp.yaml",
        kernels=False,
        facts=True,
    ),
    VersionFault(
        name="graphs-not-warned",
        title="Packed DSA with CP under CUDA graphs is not served, and nothing says so",
        kind="limit",
        path="packed THD, CP above 1, cuda_graph_impl other than none",
        judge=_fact("warns_packed_cp_graphs", "no warning", "the configuration warns"),
        change="cuda_graph_impl: none for such runs",
        link=f"{_MEGATRON}/pull/6206",
        scenario="scenarios/evidence/graphs.yaml",
        kernels=False,
        facts=True,
    ),
)
"""What a training job must know first stands first."""
