"""Every kind of evidence that an attempt can hold is shown, kinds of their own table or not."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass

from sample_parts import attempt

from harness.record.evidence import LayoutEvidence
from harness.record.result import Attempt
from harness.record.selection import OffsetEvidence
from harness.record.verdict import Verdict
from reports.plain_tables import SHOWN_ELSEWHERE, cell_text, plain_table, plain_tables


def offset(cp_rank: int, given: tuple[int, ...] | None) -> OffsetEvidence:
    return OffsetEvidence(
        global_rank=cp_rank, cp_rank=cp_rank, microbatch=0, layer=1, seed=0, call=0,
        due=(0, 96), cropped=(0, 0), given=given,
    )  # fmt: skip


def test_no_field_of_an_attempt_is_forgotten() -> None:
    hints = typing.get_type_hints(Attempt)
    for field in dataclasses.fields(Attempt):
        hint = hints[field.name]
        if typing.get_origin(hint) is tuple and field.name not in SHOWN_ELSEWHERE:
            assert dataclasses.is_dataclass(typing.get_args(hint)[0]), field.name
    assert set(hints) >= SHOWN_ELSEWHERE


def test_ranks_with_the_same_evidence_are_one_row() -> None:
    found = attempt(
        Verdict.WRONG_PATH, offsets=(offset(0, None), offset(1, None), offset(2, (0, 96)))
    )
    (table,) = plain_tables(found)
    assert table.title == "Offsets"
    assert table.header == (
        "cp_rank", "microbatch", "layer", "seed", "call", "due", "cropped", "given",
    )  # fmt: skip
    assert table.rows == (
        ("0, 1", "0", "1", "0", "0", "0, 96", "0, 0", "-"),
        ("2", "0", "1", "0", "0", "0, 96", "0, 0", "0, 96"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    layer: int
    built: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    cp_rank: int
    microbatch: int
    requests: tuple[Request, ...]


def test_parts_of_a_record_are_rows() -> None:
    asked = (Request(layer=1, built=True), Request(layer=2, built=False))
    records = tuple(Requests(cp_rank=n, microbatch=2, requests=asked) for n in (0, 1))
    table = plain_table("Memos", (*records, Requests(cp_rank=2, microbatch=2, requests=())))
    assert table.header == ("cp_rank", "microbatch", "layer", "built")
    assert table.rows == (
        ("0, 1", "2", "1", "yes"), ("0, 1", "2", "2", "no"), ("2", "2", "-", "-"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    number: int
    share: float
    names: dict[str, int]
    nothing: str = ""


def test_a_kind_that_nobody_has_met_is_shown() -> None:
    table = plain_table("Unknown", (Unknown(number=1, share=1 / 3, names={"a": 2}),))
    assert table.header == ("number", "share", "names")
    assert table.rows == (("1", "0.3333", "a 2"),)


def test_cells() -> None:
    layout = LayoutEvidence(
        global_rank=0, cp_rank=0, microbatch=0, layer=0, seed=0, table="starts", equal=False
    )
    assert cell_text(layout) == (
        "global_rank 0, cp_rank 0, microbatch 0, layer 0, seed 0, table starts, equal no"
    )
    assert [cell_text(value) for value in (None, (), "", True, float("nan"), "\x1b")] == [
        "-", "-", "-", "yes", "nan", "\\x1b",
    ]  # fmt: skip
