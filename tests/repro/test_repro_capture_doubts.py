"""What a capture does not tell is said, and no default and no innocent rank stands in for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_jobs import GLM, Job, packed, raised_in_kernel

from harness.record.codec import loads
from harness.record.verdict import Verdict
from harness.repro.capture_lines import MAX_FILE_BYTES, read_capture
from harness.repro.capture_records import CaptureError
from harness.repro.capture_scenario import FromCapture, Wishes, scenario_from
from harness.repro.capture_shown import lines_of
from harness.repro.signature import Signature
from launch.cli import cli

FAULT = "CUDA error: an illegal memory access was encountered"


def faulted(folder: Path, *, rank: int = 0, ranks: int = 1, fields=None) -> Path:
    """Record four microbatches, of which the last faults; return the file."""
    more = {} if fields is None else {"fields": dict(fields)}
    job = Job(folder=folder, rank=rank, cp_rank=rank, cp_size=max(2, ranks), **more)
    for lengths in ((64, 32), (48,), (32,)):
        job.forward(lengths)
    job.fault((16, 8), raised_in_kernel(RuntimeError(FAULT)))
    return next(folder.glob(f"rank{rank:05d}*.jsonl"))


def damage(path: Path, choose: Callable[[dict], bool]) -> None:
    """Make the lines of some events unreadable, and leave all others."""
    lines = path.read_text().splitlines()
    broken = ["{" + line if choose(json.loads(line)) else line for line in lines]
    assert broken != lines
    path.write_text("".join(f"{line}\n" for line in broken))


def line_of(event: str, number: int | None = None) -> Callable[[dict], bool]:
    return lambda item: item["e"] == event and number in (None, item.get("n"))


def made(folder: Path, **wishes) -> FromCapture:
    return scenario_from(read_capture(folder), Wishes(**wishes))


def to_scenario(folder: Path, *more: str):
    return CliRunner().invoke(cli, ["capture", "to-scenario", str(folder), *more])


def test_without_its_configuration_no_default_model_is_made(tmp_path):
    path = faulted(tmp_path, fields=GLM)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"dsa_kernel_backend"', b'"dsa_kernel_\x00backend"'))
    done = to_scenario(tmp_path)
    assert done.exit_code == 2
    assert "expected Megatron's configuration 0" in done.output
    assert f"({path.name}: 2 lines could not be read)" in done.output
    assert "mend that line" in done.output
    assert len(done.output.splitlines()) == 1
    path.write_bytes(
        b"".join(line for line in data.splitlines(True) if b'"e":"config"' not in line)
    )
    with pytest.raises(CaptureError, match="nothing else tells of the model; mend that line"):
        made(tmp_path)


def test_a_rank_that_has_the_configuration_is_named(tmp_path):
    path = faulted(tmp_path, ranks=2)
    faulted(tmp_path, rank=1, ranks=2)
    damage(path, line_of("config"))
    with pytest.raises(CaptureError, match="by --rank, such as 1"):
        made(tmp_path, rank=0)
    assert made(tmp_path, rank=1).scenario.model.dsa_indexer_topk == 16


def test_a_configuration_of_an_earlier_microbatch_is_needed_too(tmp_path):
    job = Job(folder=tmp_path)
    job.forward((64,))
    first = job.config
    job.config = type(first)(**{**vars(first), "dsa_indexer_topk": 8})
    job.forward((32,))
    (path,) = tmp_path.glob("*.jsonl")
    damage(path, lambda item: item["e"] == "config" and item["config"] == 0)
    with pytest.raises(CaptureError, match="microbatch 0: expected Megatron's configuration 0"):
        made(tmp_path)
    assert made(tmp_path, history=1).scenario.model.dsa_indexer_topk == 8


def test_no_innocent_microbatch_is_the_one_that_failed(tmp_path):
    path = faulted(tmp_path)
    damage(path, line_of("microbatch", 3))
    out, sign = tmp_path / "case.yaml", tmp_path / "signature.json"
    done = to_scenario(tmp_path, "--out", str(out), "--signature", str(sign))
    assert done.exit_code == 0, done.output
    head = "\n".join(line for line in out.read_text().splitlines() if line.startswith("#"))
    for text in (done.stderr, " ".join(head.replace("#", " ").split())):
        assert "which ended with microbatch 3, whose own line cannot be read" in text
        assert f"{path.name}: 1 line could not be read" in text
        assert "is not in this history" in text
        assert "last microbatch is 2" not in text
    assert "its last one, 3, could not be read" in out.read_text()
    assert loads(Signature, sign.read_text()).verdict is Verdict.MEMORY_FAULT
    assert "microbatch 3 without a line of its own" in "\n".join(lines_of(read_capture(tmp_path)))


def test_a_microbatch_that_began_without_a_word_afterwards_is_said_too(tmp_path):
    job = Job(folder=tmp_path)
    job.forward((64,))
    params, rows = packed((32,), 4)
    job.recorder.enter(job.module(1), job.given(params, rows))
    (path,) = tmp_path.glob("*.jsonl")
    damage(path, line_of("microbatch", 1))
    assert "ended with microbatch 1" in made(tmp_path).end.how


def test_a_rank_of_the_group_that_has_the_failing_microbatch_is_named(tmp_path):
    path = faulted(tmp_path, ranks=2)
    other = faulted(tmp_path, rank=1, ranks=2)
    damage(path, line_of("microbatch", 3))
    for file in (path, other):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("{{")]
        items = [json.loads(line) for line in lines]
        for item in items:
            if item["e"] == "microbatch":
                item["cp"]["ranks"] = [0, 1]
        broken = ["{" if file is path else ""]
        file.write_text("\n".join([*map(json.dumps, items), *filter(None, broken), ""]))
    found = made(tmp_path, rank=0)
    assert any(note.endswith("has that microbatch: --rank 1") for note in found.doubts)
    assert made(tmp_path, rank=1).end.microbatch == 3


def test_a_gap_in_the_history_is_said(tmp_path):
    damage(faulted(tmp_path), line_of("microbatch", 1))
    found = made(tmp_path)
    assert len(found.scenario.microbatches) == 2
    assert "last readable microbatch is 3" in found.end.how
    (gap,) = [note for note in found.doubts if "begins behind it" in note]
    assert gap.startswith("microbatch 1 has no line that can be read")
    assert gap.endswith("1 before it left out")


def test_a_first_line_that_is_broken_is_said_and_a_full_ring_is_not(tmp_path):
    damage(faulted(tmp_path / "broken"), line_of("microbatch", 0))
    found = made(tmp_path / "broken")
    assert len(found.scenario.microbatches) == 3
    assert any(note.startswith("microbatch 0 has no line") for note in found.doubts)
    job = Job(folder=tmp_path / "ring", settings={"ring": 1})
    for lengths in ((64,), (32,), (16,)):
        job.forward(lengths)
    job.recorder._backward(0, None)
    assert made(tmp_path / "ring").doubts == ()


def test_a_cut_file_has_no_signature_of_a_guessed_kind(tmp_path):
    path = faulted(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b'"e":"microbatch","n":1') + 40])
    found = made(tmp_path)
    assert "last readable microbatch is 0" in found.end.how
    assert f"{path.name}: 1 line could not be read" in found.doubts
    done = to_scenario(tmp_path, "--signature", str(tmp_path / "s"))
    assert done.exit_code == 2
    assert "part of its files cannot be read" in done.output
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("kind", ["link", "large"])
def test_files_left_out_are_named(tmp_path, kind):
    guilty = faulted(tmp_path, ranks=2)
    innocent = Job(folder=tmp_path, rank=1, cp_rank=1, cp_size=2)
    innocent.forward((64, 32))
    if kind == "link":
        guilty.rename(tmp_path / "elsewhere")
        guilty.symlink_to(tmp_path / "elsewhere")
    else:
        with open(guilty, "r+b") as stream:
            stream.truncate(MAX_FILE_BYTES + 1)
    done = to_scenario(tmp_path, "--out", str(tmp_path / "case.yaml"))
    assert done.exit_code == 0
    for text in (done.stderr, (tmp_path / "case.yaml").read_text()):
        assert guilty.name in text
        assert "left out" in text
        assert "may be the one at fault" in " ".join(text.replace("#", " ").split())


def test_a_rank_of_which_no_microbatch_can_be_read_is_named(tmp_path):
    damage(faulted(tmp_path, ranks=2), line_of("microbatch"))
    Job(folder=tmp_path, rank=1, cp_rank=1, cp_size=2).forward((64, 32))
    found = made(tmp_path)
    assert found.end.rank == 1
    (problem,) = read_capture(tmp_path).problems
    assert problem == (
        "rank 0: none of its microbatches can be read (4 lines broken), left out; it ended with "
        "RuntimeError"
    )
    assert problem in found.doubts


def test_a_file_of_stacks_that_cannot_be_read_is_named(tmp_path):
    faulted(tmp_path)
    (stacks,) = tmp_path.glob("*.stacks")
    stacks.rename(tmp_path / "elsewhere")
    stacks.symlink_to(tmp_path / "elsewhere")
    assert read_capture(tmp_path).problems == (f"{stacks.name}: no regular file, left out",)
    stacks.unlink()
    assert read_capture(tmp_path).problems == ()


def test_a_rank_without_its_first_line_does_not_come_first_for_that(tmp_path):
    faulted(tmp_path, ranks=2)
    later = faulted(tmp_path, rank=1, ranks=2)
    damage(later, line_of("process"))
    found = made(tmp_path)
    assert found.end.rank == 0
    assert f"{later.name}: 1 line could not be read" in found.doubts


def test_many_broken_files_are_counted(tmp_path):
    for rank in range(12):
        path = faulted(tmp_path, rank=rank, ranks=12)
        damage(path, line_of("leave", 0))
    doubts = made(tmp_path).doubts
    assert sum("could not be read" in line for line in doubts) == 8
    assert "4 more files with broken lines" in doubts


@pytest.mark.parametrize(
    ("lost", "advice", "left"),
    [(0, "--history 2", [1, 2]), (1, "--history 1", [2]), (2, "--until 1", [0, 1])],
)
def test_the_advice_for_lengths_that_landed_nowhere_can_be_followed(tmp_path, lost, advice, left):
    job = Job(folder=tmp_path)
    for lengths in ((64,), (32,), (16,)):
        job.forward(lengths)
    (path,) = tmp_path.glob("*.jsonl")
    _lose_lengths(path, lost)
    refused = to_scenario(tmp_path)
    assert refused.exit_code == 2
    assert refused.output.strip().endswith(advice)
    assert "landed on every rank" in refused.output
    assert to_scenario(tmp_path, *advice.split()).exit_code == 0
    option, value = advice.removeprefix("--").split()
    found = made(tmp_path, **{option: int(value)}).scenario.microbatches
    assert [one.sequences for one in found] == [((64,), (32,), (16,))[number] for number in left]


def test_where_no_other_microbatch_is_left_no_option_of_the_history_is_advised(tmp_path):
    job = Job(folder=tmp_path)
    job.forward((64,))
    (path,) = tmp_path.glob("*.jsonl")
    _lose_lengths(path, 0)
    with pytest.raises(CaptureError, match="choose a rank of another group by --rank"):
        made(tmp_path)


def _lose_lengths(path: Path, number: int) -> None:
    items = [json.loads(line) for line in path.read_text().splitlines()]
    for item in items:
        if item["e"] == "microbatch" and item["n"] == number:
            item["states"], item["values"] = dict.fromkeys(item["values"], "pending"), {}
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
