"""The known defects that a model can switch on by name. This table is closed.

Which release and architecture shipped which defect stands in ``releases``; here stands what each
one is. ``basis`` says how well it is known: ``reported`` (public report), ``read`` (release
source), ``deduced`` (from the source, not confirmed on a device).
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
    basis: Literal["reported", "read", "deduced"]


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
        summary="Forward under THD sizes its grid by max_seqlen_q: later rows of a longer segment "
        "are never scored and stay -inf.",
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
)

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
