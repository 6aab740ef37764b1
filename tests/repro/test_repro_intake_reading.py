"""Intake reads what counts of a text: no comments, every line once; it says what it left out."""

from __future__ import annotations

import pytest

from harness.repro.intake import lines as reading
from harness.repro.intake.intake import take_in
from harness.repro.intake.lines import read_text, without_comment
from harness.repro.intake.report import markdown


@pytest.fixture
def taken(tmp_path):
    def take(text, name="sent.txt"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return take_in([path])

    return take


def fields(found):
    return {one.path.rpartition(".")[2]: one.value for one in found.draft.fields}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "torchrun x.py \\\n  --context-parallel-size 4 \\\n  # --dsa-indexer-topk 64 \\\n",
            {"context_parallel_size": 4},
        ),
        ("# torchrun x.py --context-parallel-size 4\n", {}),
        ("  #torchrun x.py --context-parallel-size 4\n", {}),
        ("torchrun x.py --num-layers 4 # --hidden-size 8\n", {"num_layers": 4}),
        ("torchrun x.py --save 'a # b' --num-layers 4\n", {"num_layers": 4}),
        ('torchrun x.py --save "a \\" # b" --num-layers 4\n', {"num_layers": 4}),
        ("torchrun x.py --save a#b --num-layers 4\n", {"num_layers": 4}),
        ("torchrun x.py --save a\\ \\# --num-layers 4\n", {"num_layers": 4}),
        ("num_layers: 4  # it was num_layers: 8\n", {"num_layers": 4}),
        ("# num_layers: 4\n", {}),
        ("# num_layers = 4\n", {}),
        ("num_layers = 4  # context_parallel_size = 8\n", {"num_layers": 4}),
        ("it doesn't work with num_layers=4 # isn't it?\n", {"num_layers": 4}),
        ("as in #311 with num_layers=4\n", {"num_layers": 4}),
        ("root@node:~# torchrun x.py --num-layers 4\n", {"num_layers": 4}),
    ],
)
def test_comments_say_nothing(taken, text, said):
    assert fields(taken(text)) == said


def test_a_comment_contradicts_nobody(taken):
    found = taken("  num_layers ........ 78\n+ torchrun x.py \\\n# --num-layers 4 \\\n")
    assert fields(found) == {"num_layers": 78}
    assert not list(found.facts.conflicts())


def test_a_switch_in_a_comment_is_not_set(taken):
    text = "RuntimeError: CUDA error: misaligned address\n# export CUDA_LAUNCH_BLOCKING=1\n"
    assert "launches that block" in [one.topic for one in taken(text).questions]


def test_hostile_quotes_cost_no_more_than_their_length():
    for text in ('"\\' * 2000 + " #", "' " * 2000 + "#", '" ' * 2000 + "#", "\\" * 3999 + "#"):
        assert len(without_comment(text)) <= len(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "0 lines"),
        ("a", "1 line"),
        ("a\n", "1 line"),
        ("a\nb\n", "2 lines"),
        ("a\n\n", "2 lines"),
        ("\n", "1 line"),
    ],
)
def test_lines_are_counted(taken, text, shown):
    assert f"sent.txt: {shown}, nothing that is known here\n" in markdown(taken(text))


def test_a_line_cut_at_the_gap_gives_no_value(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "HEAD_BYTES", 40)
    monkeypatch.setattr(reading, "TAIL_BYTES", 12)
    path = tmp_path / "sent.txt"
    path.write_text("context_parallel_size ................ 32\nstep 1\nstep 2\nlast\n")
    read = read_text(path)
    assert [line.text for line in read.lines] == ["last"]
    assert read.num_lines == read.lines[0].number == 4
    assert (read.gap.first, read.gap.last) == (1, 3)
    assert fields(take_in([path])) == {}


def test_a_list_does_not_go_on_behind_the_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "HEAD_BYTES", 24)
    monkeypatch.setattr(reading, "TAIL_BYTES", 14)
    path = tmp_path / "sent.txt"
    path.write_text("cu_seqlens_q=[0, 64,\n" + "128, 256,\n" * 9 + "8192]\n")
    found = take_in([path])
    assert found.draft.fields == []
    assert "its end is missing" in found.draft.notes[0]
