"""Lists of lengths: whose they are, however ranks interrupt, and why one is not taken."""

from __future__ import annotations

import pytest

from harness.repro.intake.draft import MAX_MICROBATCHES
from harness.repro.intake.intake import take_in
from harness.repro.intake.report import as_data, markdown

FAULT = (
    " 3: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    "srun: error: node1: task 3: Aborted\n"
)


@pytest.fixture
def taken(tmp_path):
    def take(text):
        path = tmp_path / "sent.log"
        path.write_text(text)
        return take_in([path])

    return take


def sequences(found):
    return [one.value for one in found.draft.fields if one.path.endswith(".sequences")]


def test_a_list_goes_on_in_the_lines_of_its_rank(taken):
    found = taken(
        " 0: cu_seqlens_q=tensor([   0, 4096, 8192])\n"
        " 3: cu_seqlens_q=tensor([   0, 1000,\n"
        " 0: step 12 loss 1.2\n"
        " 3:         5096, 8192])\n" + FAULT
    )
    assert sequences(found) == [(1000, 4096, 3096)]
    assert found.draft.fields[0].facts[0].line.number == 2


def test_two_ranks_print_lists_at_once(taken):
    found = taken(
        " 0: cu_seqlens_q=tensor([   0, 4096,\n"
        " 3: cu_seqlens_q=tensor([   0, 1000,\n"
        " 0:         5000,\n"
        " 3:         5096,\n"
        " 0:         8192])\n"
        " 3:         8192])\n" + FAULT
    )
    assert sequences(found) == [(1000, 4096, 3096)]


def test_lists_keep_their_order_whichever_ends_first(taken):
    found = taken(
        "[rank1]: cu_seqlens_q=[0, 8,\n"
        "[rank1]: 16]\n"
        "[rank1]: cu_seqlens_q=[0, 32]\n"
        "[rank1]: cu_seqlens_q=[0,\n"
        "[rank1]: 64]\n"
    )
    assert sequences(found) == [(8, 8), (32,), (64,)]


def test_only_the_first_line_has_the_prefix(taken):
    found = taken("[rank3]: cu_seqlens_q=tensor([0, 1000,\nstep 12\n    5096, 8192])\n")
    assert sequences(found) == [(1000, 4096, 3096)]


def test_lines_that_may_be_of_two_ranks_are_of_none(taken):
    found = taken(
        "[rank0]: cu_seqlens_q=tensor([0, 4096,\n"
        "[rank3]: cu_seqlens_q=tensor([0, 1000,\n"
        "    8192])\n    5096, 8192])\n"
    )
    assert found.draft.fields == []
    assert len(found.draft.notes) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "cu_seqlens_q=tensor([0, 1024, 2048, ..., 65536], dtype=torch.int32)",
            'ask for all of it, as after torch.set_printoptions(profile="full")',
        ),
        ("cu_seqlens_q=[0, 1024, …, 65536]", "it was shortened"),
        ("cu_seqlens_q=tensor([    0,  1024,  2048,\n   ...,\n  65536])", "it was shortened"),
        ("cu_seqlens_q: [0, 100, 50, 200]", "it falls from 100 to 50, which may be the fault"),
        ("cu_seqlens_q: [0, 65536, -2147483648]", "it holds -2147483648, which is no boundary"),
        ("cu_seqlens_q: [64, 128]", "it begins at 64, not at 0"),
        ("cu_seqlens_q: [0]", "it has no sequence"),
        ("cu_seqlens_q=tensor([], dtype=torch.int32)", "it is empty"),
        ("cu_seqlens_q: [0, total]", "it holds total, which is no boundary"),
        ("cu_seqlens_q: [0, 64,\nstep 3", "its end is missing"),
        ("cu_seqlens_q: [0, " + "64, " * 1200 + "]", "its end is missing"),
        ("sequences: [4096, ..., 128]", "it was shortened"),
        ("seq_lens: [4096, -1]", "it holds -1, which is no length"),
    ],
)
def test_a_list_that_cannot_be_used_is_named_with_its_place_and_why(taken, tmp_path, text, why):
    found = taken(f"first\n{text}\n")
    assert found.draft.fields == []
    name = "sequences" if text.startswith("seq") else "cu_seqlens_q"
    (note,) = [note for note in found.draft.notes if note.startswith(f"{name} ")]
    assert note.startswith(f"{name} ({tmp_path}/sent.log:2): not taken, ")
    assert why in note
    assert note in markdown(found)
    assert note in as_data(found)["notes"]
    assert "lengths" in [one.topic for one in found.questions]


@pytest.mark.parametrize(
    "text",
    [
        "assert cu_seqlens_q[-1] == total and cu_seqlens_q[0] == 0",
        "lengths = cu_seqlens_q[1:] - cu_seqlens_q[:-1]",
        "cu_seqlens_q: [B + 1], int32",
        "sequences: [see below]",
        "sequences [12:40] are slow",
    ],
)
def test_what_is_no_list_is_no_news(taken, text):
    assert taken(text).draft.notes == []


def test_lists_of_numpy_have_no_commas(taken):
    assert sequences(taken("cu_seqlens_q=[   0 4096\n 8192]\n")) == [(4096, 4096)]


def test_lists_of_another_rank_are_no_stand_in_for_those_of_the_one_that_failed(taken):
    found = taken(" 0: cu_seqlens_q=[0, 64]\n 3: cu_seqlens_q=[0, 100, 50]\n" + FAULT)
    assert sequences(found) == []
    assert "it falls from 100 to 50" in found.draft.notes[0]


def test_a_list_that_is_not_taken_keeps_its_place_among_the_others(taken):
    found = taken(
        "cu_seqlens_q=[0, 64]\n"
        "cu_seqlens_q=[0, ..., 96]\n"
        "cu_seqlens_q_padded=[0, 96]\n"
        "cu_seqlens_q=[0, 32]\n"
    )
    assert sequences(found) == [(64,), (32,)]
    assert not [one for one in found.draft.fields if one.path.endswith(".padded")]


def test_many_lists_that_cannot_be_used_are_counted(taken):
    notes = taken("cu_seqlens_q=[0, 9, 8]\n" * MAX_MICROBATCHES).draft.notes
    assert f"{MAX_MICROBATCHES - 8} more lists that cannot be used" in notes
