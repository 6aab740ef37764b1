"""Captures as a crash, a full disk or a stranger leaves them."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_jobs import Job, raised_in_kernel

from harness.repro.capture_ends import chosen_end, signature_from
from harness.repro.capture_lines import MAX_FILE_BYTES, read_capture
from harness.repro.capture_records import CaptureError
from harness.repro.capture_scenario import Wishes, scenario_from
from harness.repro.capture_shown import lines_of
from launch.cli import cli


def recorded(folder: Path, ranks: int = 1) -> list[Path]:
    for rank in range(ranks):
        job = Job(folder=folder, rank=rank, cp_rank=rank)
        job.forward((64, 32))
        job.forward((48,))
    return sorted(folder.glob("*.jsonl"))


def test_a_cut_last_line_is_counted(tmp_path):
    (path,) = recorded(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    rank = read_capture(tmp_path).ranks[0]
    assert rank.num_broken == 1
    assert len(rank.microbatches) == 2


def test_lines_that_are_no_lines_are_counted(tmp_path):
    (path,) = recorded(tmp_path)
    bad = [
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"e":"microbatch"}',
        b'{"e":"enter","n":-1,"layer":1,"t":1}',
        b'{"e":"enter","n":0,"layer":"x","t":99999999}',
        b'{"e":"lengths","n":0,"t":1e999,"values":{}}',
        b'{"e":"lengths","n":0,"t":99999999,"values":{"cu_seqlens_q":[1.5]}}',
        b'{"e":"config","config":0,"fields":3}',
        b"[" * 100_000,
    ]
    path.write_bytes(path.read_bytes() + b"\n".join(bad) + b"\n")
    rank = read_capture(tmp_path).ranks[0]
    assert rank.num_broken == len(bad)
    assert rank.microbatches[0].lists["cu_seqlens_q"] == [0, 64, 96]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, seed):
    (path,) = recorded(tmp_path)
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(30):
        place = chance.randrange(len(data))
        data[place] = chance.choice(b'0123456789-[]{}",:\n\x00\xff')
    path.write_bytes(bytes(data))
    refused = ""
    try:
        capture = read_capture(tmp_path)
        scenario_from(capture, Wishes())
        assert list(lines_of(capture))
    except CaptureError as error:
        refused = str(error)
    assert "\n" not in refused


ODD = (None, 1, -1, "x", [], {}, [1], ["x"], {"a": 1}, 1e300, True, 2**70)


def _change(value, chance):
    """Put something of another kind in a random place of a line."""
    places = []

    def walk(node):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, inner in items:
            places.append((node, key))
            if isinstance(inner, (dict, list)):
                walk(inner)

    walk(value)
    node, key = chance.choice(places)
    node[key] = copy.deepcopy(chance.choice(ODD))


@pytest.mark.parametrize("seed", range(20))
def test_values_of_another_kind_are_read_or_refused_in_one_line(tmp_path, seed):
    (path,) = recorded(tmp_path)
    chance = random.Random(seed)
    values = [json.loads(line) for line in path.read_text().splitlines()]
    for _ in range(4):
        _change(chance.choice([one for one in values if isinstance(one, dict)]), chance)
    path.write_text("".join(json.dumps(one) + "\n" for one in values))
    arguments = ["capture", "to-scenario", str(tmp_path), "--signature", str(tmp_path / "s")]
    for command in (["capture", "show", str(tmp_path)], arguments[:3], arguments):
        done = CliRunner().invoke(cli, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), seed
        assert done.exit_code in (0, 2)


def test_late_lines_in_the_other_file_find_their_microbatch(tmp_path):
    job = Job(folder=tmp_path, settings={"ring": 1})
    for lengths in ((64,), (32,)):
        job.forward(lengths)
    first, second = sorted(tmp_path.glob("*.jsonl"))
    text = second.read_text()
    line = json.loads(text.splitlines()[-1])
    late = {"e": "lengths", "n": 0, "t": line["t"] + 1, "values": {"cu_seqlens_q": [0, 16]}}
    second.write_text(text + json.dumps(late) + "\n")
    assert read_capture(tmp_path).ranks[0].microbatches[0].lists["cu_seqlens_q"] == [0, 16]
    os.replace(second, tmp_path / "x")
    os.replace(first, second)
    os.replace(tmp_path / "x", first)
    assert read_capture(tmp_path).ranks[0].microbatches[0].lists["cu_seqlens_q"] == [0, 16]


def test_a_folder_without_a_capture_is_refused(tmp_path):
    with pytest.raises(CaptureError, match="expected files rank"):
        read_capture(tmp_path)
    with pytest.raises(CaptureError, match="cannot be read"):
        read_capture(tmp_path / "absent")


def test_what_is_no_file_is_left_out(tmp_path):
    (path,) = recorded(tmp_path)
    other = path.name.replace("rank00000", "rank00001")
    os.mkfifo(tmp_path / other)
    third = tmp_path / path.name.replace("rank00000", "rank00002")
    with open(third, "wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    capture = read_capture(tmp_path)
    assert list(capture.ranks) == [0]
    assert [problem.split(": ")[1][:10] for problem in capture.problems] == [
        "no regular",
        "larger tha",
    ]


def test_the_newest_process_of_a_rank_counts(tmp_path):
    (path,) = recorded(tmp_path)
    stem, _, rest = path.name.partition(".")
    started, _, rest = rest.partition(".")
    path.rename(tmp_path / f"{stem}.{int(started) - 5}.{rest}")
    job = Job(folder=tmp_path)
    job.forward((8,))
    capture = read_capture(tmp_path)
    assert len(capture.ranks[0].microbatches) == 1
    assert capture.num_older == 1


def test_the_first_cause_is_chosen_over_its_echoes(tmp_path):
    def all_gather() -> None:
        raise RuntimeError("Connection closed by peer")

    code = compile("def wait(act):\n    act()\n", "/site/torch/distributed/c10d.py", "exec")
    names: dict = {}
    exec(code, names)
    with pytest.raises(RuntimeError) as echo:
        names["wait"](all_gather)
    for rank in (0, 2):
        Job(folder=tmp_path, rank=rank, cp_rank=rank).fault((64,), echo.value)
    real = raised_in_kernel(ValueError("nonsense"))
    Job(folder=tmp_path, rank=1, cp_rank=1).fault((64,), real)
    end = chosen_end(read_capture(tmp_path))
    assert end.rank == 1
    assert chosen_end(read_capture(tmp_path), 2).rank == 2
    with pytest.raises(CaptureError, match="found those of 0, 1, 2"):
        chosen_end(read_capture(tmp_path), 7)


def test_a_rank_that_a_signal_killed_comes_before_those_told_to_end(tmp_path):
    recorded(tmp_path, ranks=3)
    stacks = {path.name[4:9]: path for path in tmp_path.glob("rank*.stacks")}
    # Files of this process are named after rank 0; put them in the places of three ranks.
    source = next(iter(stacks.values()))
    names = {path.name[4:9]: path.name for path in tmp_path.glob("*.jsonl")}
    texts = {
        "00000": 'Stack (most recent call first):\n  File "a.py", line 1 in f\n',
        "00001": "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call "
        'first):\n  File "in.py", line 3 in kernel\n  File "out.py", line 4 in train\n\nExtension',
        "00002": "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n",
    }
    for path in tmp_path.glob("*.stacks"):
        path.unlink()
    for rank, text in texts.items():
        (tmp_path / names[rank].replace(".0.jsonl", ".stacks")).write_text(text)
    assert source.suffix == ".stacks"
    capture = read_capture(tmp_path)
    assert capture.ranks[0].was_asked
    end = chosen_end(capture)
    assert end.rank == 1
    assert end.died.frames == ("out.py:4:train", "in.py:3:kernel")
    signature = signature_from(capture, end)
    assert (str(signature.verdict), signature.exception) == ("crash", "SIGSEGV")


def test_a_rank_that_left_by_itself_is_no_echo_of_a_collective(tmp_path):
    Job(folder=tmp_path).fault((64,), raised_in_kernel(SystemExit(3)))
    how = chosen_end(read_capture(tmp_path)).how
    assert "it left by SystemExit" in how
    assert "collective" not in how


def test_silent_ranks_are_not_told_apart_by_guessing(tmp_path):
    recorded(tmp_path, ranks=2)
    end = chosen_end(read_capture(tmp_path))
    assert "need not mean that it failed first" in end.how


def test_hidden_characters_of_a_capture_are_shown_as_escapes(tmp_path):
    job = Job(folder=tmp_path)
    job.fault((64,), RuntimeError("red \x1b[31m\u202e text"))
    text = "\n".join(lines_of(read_capture(tmp_path)))
    assert "\x1b" not in text
    assert "\\x1b" in text
