"""The known defects that a model can switch on by name. This table is closed.

Which release and architecture shipped which defect stands in ``releases``; here stands what each
one is. ``basis`` says how well it is known: ``reported`` (public report), ``read`` (release
source), ``deduced`` (from the source, not confirmed on a device), ``elsewhere`` (reported of
another kernel and in no release of this one, see the module of that name).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_REPOSITORY = "https://github.com/NVIDIA/cudnn-frontend"

Defects = Literal["as_released", "none"] | tuple[str, ...]
"""What a caller may ask for; names are those of ``DEFECTS``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defect:
    """One known defect.

    Attributes:
        name: Switch name.
        summary: What goes wrong and when, in a line.
        link: Public report, correction, or the source it was read in.
        basis: How well it is known.
    """

    name: str
    summary: str
    link: str
    basis: Literal["reported", "read", "deduced", "elsewhere"]


_ALL = (
    Defect(
        name="d311",
        summary="Top-k scratch offsets are formed in 32 bits over all rows of one launch: a row "
        "that spills behind element 2^31 gets a negative offset.",
        link=f"{_REPOSITORY}/issues/311",
        basis="reported",
    ),
    Defect(
        name="d311_residue",
        summary="Top-k rows are launched in chunks, but where one aligned step of rows does not "
        "fit 2^31 scratch words a single launch is still used.",
        link=f"{_REPOSITORY}/issues/311",
        basis="read",
    ),
    Defect(
        name="d446",
        summary="Lanes behind the last aligned vector count as -inf candidates: rows with fewer "
        "than top_k entries above the -inf bucket pick columns past their length and re-read the "
        "score there.",
        link=f"{_REPOSITORY}/pull/410",
        basis="reported",
    ),
    Defect(
        name="d406",
        summary="An odd top_k above the thread count fails at compile although check_support "
        "passed.",
        link=f"{_REPOSITORY}/pull/407",
        basis="reported",
    ),
    Defect(
        name="mask_leak",
        summary="SM90 forward with 32 heads masks only the right-most 64-column block of a tile of "
        "four rows: one or two columns past the limit hold real scores.",
        link=_REPOSITORY,
        basis="deduced",
    ),
    Defect(
        name="short_max_k",
        summary="SM100 forward under THD has no column guard against max_seqlen_k: a longer "
        "segment's scores run on into the next row, or past the end for the last one.",
        link=_REPOSITORY,
        basis="deduced",
    ),
    Defect(
        name="short_max_q",
        summary="Forward, dense recompute and dense indexer backward under THD size their grid by "
        "max_seqlen_q: later rows of a longer segment are never computed.",
        link=_REPOSITORY,
        basis="deduced",
    ),
    Defect(
        name="short_rows",
        summary="Top-k of a misaligned row shorter than the elements up to the next aligned "
        "address, and longer than top_k, ranks columns past the length.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="long_lengths",
        summary="Top-k does not clamp seq_lens to the columns: a longer length reads on into the "
        "next row.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="d550",
        summary="SM100 sparse indexer backward checks local ids only after adding b * Sk, against "
        "B * Sk: an id from Sk on uses a later batch's key and adds to its dK.",
        link=f"{_REPOSITORY}/issues/550",
        basis="reported",
    ),
    Defect(
        name="foreign_ids",
        summary="SM100 sparse indexer backward takes a global id of another batch, and adds to "
        "that batch's dK; SM90 drops it.",
        link=f"{_REPOSITORY}/issues/550",
        basis="read",
    ),
    Defect(
        name="unzeroed_dk",
        summary="Sparse indexer backward adds to the old contents of a caller's fp32 d_index_k.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="d297",
        summary="SM100 dense indexer backward tests the probability, after an exp2 that flushes "
        "denormals, instead of its logarithm: between about -100 and -87.3 no gradient is left.",
        link=f"{_REPOSITORY}/pull/297",
        basis="read",
    ),
    Defect(
        name="d317",
        summary="SM100 sparse attention recompute with topk_length fails to compile where the "
        "compact kernel is chosen.",
        link=f"{_REPOSITORY}/pull/317",
        basis="reported",
    ),
    Defect(
        name="d1549",
        summary="SM100 sparse attention recompute ignores topk_length where the compact and the "
        "plain tile coincide: slots behind the length that hold no -1 count.",
        link=f"{_REPOSITORY}/issues/1549",
        basis="reported",
    ),
    Defect(
        name="slot_arithmetic",
        summary="SM100 sparse recompute masks slot numbers as if their count were a power of two: "
        "other counts hang, and block counts that are no multiple of it read unfinished data.",
        link=_REPOSITORY,
        basis="deduced",
    ),
    Defect(
        name="invalid_slots",
        summary="Sparse recompute counts slots whose id is no key: a zero key on SM90, stale "
        "shared memory or, with topk_length, an unchecked address on SM100.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="tail_slots",
        summary="SM90 sparse recompute never computes the slots behind the last multiple of 128.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="single_row",
        summary="SM90 recompute of a single query row (or a packed segment of one, up to 1.29 in "
        "the dense wrappers) fails: the transposed per-head operand has no unit stride where the "
        "kernel is compiled for one.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="long_topk_lengths",
        summary="A topk_length above the slots reads ids past the row, in sparse attention "
        "recompute and in attention backward.",
        link=_REPOSITORY,
        basis="read",
    ),
    Defect(
        name="d384",
        summary="SM90 attention backward packs 64 (token, head) rows into a tile and takes all ids "
        "of the tile from its first row's token: wrong unless the heads are a multiple of 64.",
        link=f"{_REPOSITORY}/issues/384",
        basis="reported",
    ),
    Defect(
        name="d785",
        summary="SM90 attention backward does not mask invalid ids or unused slots: addresses "
        "outside kv, NaN from exp(-L), and no end where topk_length <= 0.",
        link=f"{_REPOSITORY}/pull/785",
        basis="reported",
    ),
    Defect(
        name="d877",
        summary="SM100 attention backward does not mask invalid ids, unused slots or infinite "
        "statistics: addresses outside kv, NaN from exp(-L).",
        link=f"{_REPOSITORY}/pull/877",
        basis="reported",
    ),
    Defect(
        name="d433",
        summary="SM100 attention backward hangs on a row whose topk_length is 0 or less.",
        link=f"{_REPOSITORY}/issues/433",
        basis="reported",
    ),
    Defect(
        name="d298",
        summary="SM100 attention backward drops the dkv of every slot position from S_kv on.",
        link=f"{_REPOSITORY}/pull/298",
        basis="reported",
    ),
    Defect(
        name="tie_cap",
        summary="Top-k keeps at most 1024 keys level with the cut: of a longer plateau the other "
        "slots stay empty.",
        link="https://github.com/sgl-project/sglang/pull/30645",
        basis="elsewhere",
    ),
    Defect(
        name="candidate_cap",
        summary="Top-k holds 4096 keys of the bucket of the cut, the lowest columns.",
        link="https://github.com/local-inference-lab/b12x/pull/55",
        basis="elsewhere",
    ),
    Defect(
        name="nan_ids",
        summary="Top-k of a row that holds a NaN returns uninitialised ids.",
        link="https://github.com/vllm-project/vllm/issues/49896",
        basis="elsewhere",
    ),
    Defect(
        name="zero_scores",
        summary="The sum over heads is zero everywhere, and selection a matter of chance.",
        link="https://github.com/ml-explore/mlx-lm/pull/1454",
        basis="elsewhere",
    ),
    Defect(
        name="rounded_width",
        summary="Top-k reads columns up to the next power of two, past the end of a row.",
        link="https://github.com/NVIDIA/Megatron-LM/pull/5087",
        basis="elsewhere",
    ),
    Defect(
        name="over_limit",
        summary="Top-k ranks one key past a row's length.",
        link="https://github.com/sgl-project/sglang/pull/39431",
        basis="elsewhere",
    ),
    Defect(
        name="fixed_width",
        summary="Top-k takes a width of 2048 only, and dies of a bare assertion at any other.",
        link="https://github.com/sgl-project/sglang/pull/39431",
        basis="elsewhere",
    ),
    Defect(
        name="lse_over_read",
        summary="SM100 attention backward reads its statistics 64 heads at a time: other head "
        "counts read past the end of the workspace.",
        link=_REPOSITORY,
        basis="read",
    ),
)

NOT_MODELLED: dict[str, str] = {
    "recompute_handoff": "SM100 sparse recompute up to 1.30 with several query tiles per CTA: "
    "races on statistics, ids and partial sums give rare wrong values.",
    "scratch_reuse": "SM90 sparse recompute: warps store partial sums into words that another may "
    "not have read yet.",
    "backward_handoff": "SM100 sparse indexer backward before its rewrite: a race checker flags a "
    "shared-memory hand-off; no effect was observed.",
}
"""Known races without a switch: nobody has established what they do to a result."""

DEFECTS: dict[str, Defect] = {defect.name: defect for defect in _ALL}
"""Name to defect."""


def resolve_defects(asked: Defects, released: frozenset[str]) -> frozenset[str]:
    """Turn what the caller asked for into the set of names to switch on.

    Args:
        asked: ``as_released``, ``none``, or names of ``DEFECTS``.
        released: What the release has on the architecture.

    Raises:
        ValueError: A name is not in the table.
    """
    if asked == "as_released":
        return released
    if asked == "none":
        return frozenset()
    if isinstance(asked, str):
        raise ValueError(
            f"defects is {asked!r}; expected 'as_released', 'none' or a tuple of names such as "
            f"({asked!r},)"
        )
    unknown = sorted(set(asked) - DEFECTS.keys())
    if unknown:
        raise ValueError(f"unknown defects {unknown}; known names are {sorted(DEFECTS)}")
    return frozenset(asked)
