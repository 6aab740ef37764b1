"""Tables of the optional collectors: what was found, and how each cell is known."""

from __future__ import annotations

from dataclasses import replace

from sample_parts import attempt, result, selection, stats

from harness.record.copies import CopyEvidence
from harness.record.graphs import CAPTURED, GraphBlocker, GraphEvidence, GraphReplay, GraphWarning
from harness.record.launches import LaunchEvidence
from harness.record.state import StateChange, StateEvidence
from harness.record.transfers import TransferEvidence, TransferSite
from harness.record.verdict import Outcome, Verdict
from reports.collected import collected_tables
from reports.graphs import readiness_table
from reports.markdown import render_markdown
from reports.summary import summarise
from reports.transfers import transfer_table

COPY = TransferSite(
    kind="to_device",
    operation="aten._to_copy",
    site="megatron/core/a.py:290",
    function="build",
    phase="layout",
    count=5,
    bytes=40,
    pinned=False,
    between_collectives=True,
)
RANK = {"microbatch": 0, "seed": 0}
GRAPH = GraphEvidence(
    **RANK,
    global_rank=0,
    cp_rank=0,
    backend="cudnn",
    impl="local",
    modules=("attn",),
    dynamic_cp=False,
    cp_size=2,
    constructs=True,
    warnings_due=1,
    eager=True,
    reason="missing usable GPU",
    blockers=(
        GraphBlocker(
            operation="aten.index.Tensor",
            kind="data_shape",
            site="megatron/core/a.py:249",
            function="build",
            phase="layout",
            layer=1,
            count=5,
        ),
    ),
)
REPLAY = GraphReplay(pack=(64, 32), rows=48, rows_different=0, output_difference=0.0)


def summary(**evidence):
    good = {"selections": (selection(0, stats()),)}
    one = result("evidence/a", [attempt(Verdict.PASS, **good, **evidence)], Outcome.EXPECTED)
    return summarise(None, [one])


def transfers(*sites: TransferSite) -> tuple[TransferEvidence, ...]:
    return tuple(
        TransferEvidence(
            **RANK, global_rank=rank, cp_rank=rank, layer=layer, how="look_alike", sites=sites
        )
        for rank in (0, 1)
        for layer in (1, 2)
    )


def test_a_blocking_copy_between_collectives_is_called_a_hang_risk():
    (row,) = transfer_table(summary(transfers=transfers(COPY))).rows
    assert row[1:5] == ("0", "1, 2", "0, 1", "5")
    assert row[9] == "pageable, 40 bytes, blocking"
    assert row[10].startswith("hang risk")
    for harmless in (replace(COPY, blocking=False), replace(COPY, between_collectives=False)):
        (row,) = transfer_table(summary(transfers=transfers(harmless))).rows
        assert row[10] == "-"


def cell(record: GraphEvidence, *, dynamic: bool = False) -> str:
    rows = readiness_table(summary(graphs=(record,))).rows
    (row,) = [row for row in rows if row[:3] == (record.backend, record.impl, "attn")]
    others = [text for other in rows for text in other[3:] if other is not row]
    assert set(others) == {"unmeasured"}
    return row[4] if dynamic else row[3]


def test_a_cell_says_how_it_is_known():
    assert "predicted: capture stops at 1 lines" in cell(GRAPH)
    assert "warns 0 of 1" in cell(GRAPH)
    captured = replace(GRAPH, capture=CAPTURED, replays=(REPLAY, replace(REPLAY, rows_different=1)))
    assert "measured: captured, 1 of 2 replays equal" in cell(captured)
    assert "does not construct" in cell(replace(GRAPH, constructs=False))
    moved = replace(GRAPH, dynamic_cp=True)
    assert cell(moved) == "unmeasured"
    assert "predicted" in cell(moved, dynamic=True)


def test_each_kind_has_its_table_in_the_markdown_report():
    warning = GraphWarning(
        text="packed DSA", category="UserWarning", count=2, about_packed_dsa=True
    )
    change = StateChange(name="group a.cp", before="ranks 0, 1", after="ranks 0")
    found = summary(
        transfers=transfers(COPY),
        graphs=(replace(GRAPH, warnings=(warning,)),),
        states=(
            StateEvidence(
                **RANK, global_rank=0, cp_rank=0, groups=2, settings=3, dispatch=4, moved=(change,)
            ),
        ),
        launches=(
            LaunchEvidence(**RANK, global_rank=0, cp_rank=0, layer=1, launch="again", rows=8),
        ),
        copies=(
            CopyEvidence(global_rank=0, cp_size=2, table="key_reorder", why_not="no GPU"),
            CopyEvidence(global_rank=0, cp_size=4, table="key_reorder", equal=True, ratio=1.5),
        ),
    )
    titles = [table.title for table in collected_tables(found)]
    assert len(titles) == 8
    text = render_markdown(found)
    for title in titles:
        assert title in text
    for shown in ("ranks 0, 1", "UserWarning", "not_run: no GPU", "1.50", "a.py:249"):
        assert shown in text


def test_without_evidence_there_are_no_tables():
    assert collected_tables(summary()) == ()
    assert "Collected" not in render_markdown(summary())
