"""The Slurm commands against stand-ins on PATH: parsing, refusals, number of calls."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.jobs import jobs as jobs_command
from launch.jobs import wait as wait_command
from launch.nightly import nightly
from launch.slurm.client import UNKNOWN, Slurm, SlurmError
from launch.slurm.parts import Part
from launch.slurm.progress import PartState, progress
from launch.slurm.submission import Submission, SubmittedJob, write_submission
from launch.submit import submit

CLUSTER = str(Path(__file__).resolve().parents[2] / "configs/clusters/local.yaml")
SCENARIO = """\
id: many
summary: Many.
model: small
level: attention
kernels: {dsa_kernel_backend: none}
microbatches: [{sequences: [64, 32]}]
matrix:
  parallel.context_parallel_size: [1, 2, 4]
  values.seeds: [SEEDS]
"""

Fake = Callable[[str, str], None]


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_states_come_from_one_query(fake: Fake, tmp_path: Path) -> None:
    fake("squeue", "echo '7|RUNNING|None|n1'; echo '8_0|FAILED|NonZeroExitCode|n2'")
    found = Slurm().states(["7", "8"])
    assert found["7"].state == "RUNNING"
    assert (found["8_0"].state, found["8_0"].nodes) == ("FAILED", "n2")
    assert calls(tmp_path) == ["squeue"]


def test_what_the_queue_forgot_is_asked_of_the_accounting(fake: Fake, tmp_path: Path) -> None:
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake("sacct", "echo '7|CANCELLED by 0|0:0|n1'; echo '8_[0-5]|PENDING|0:0|None assigned'")
    found = Slurm().states(["7", "8"])
    assert found["7"].state == "CANCELLED"
    assert found["8"].state == UNKNOWN
    assert calls(tmp_path) == ["squeue", "sacct"]


def test_without_accounting_it_is_asked_once(fake: Fake, tmp_path: Path) -> None:
    fake("squeue", "")
    fake("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    slurm = Slurm()
    for _ in range(3):
        assert slurm.states(["7"])["7"].state == UNKNOWN
    assert calls(tmp_path) == ["squeue", "sacct", "squeue", "squeue"]


def test_a_missing_command_and_a_silent_controller_are_one_line(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(SlurmError, match="squeue: no such command"):
            Slurm().states(["1"])
    fake("squeue", "exec sleep 60")
    with pytest.raises(SlurmError, match="no answer within 1 s; is the controller up"):
        Slurm(timeout_s=1).states(["1"])


def test_a_refusal_is_told_in_slurms_words(fake: Fake) -> None:
    fake("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        Slurm().submit("x")
    assert str(caught.value) == "sbatch: Batch job submission failed: Invalid account"


def test_several_clusters_answer_with_a_name(fake: Fake) -> None:
    fake("sbatch", "echo '42;east'")
    assert Slurm().submit("x") == "42"


def run_submit(tmp_path: Path, *words: str, seeds: int = 1) -> object:
    path = tmp_path / "many.yaml"
    path.write_text(SCENARIO.replace("SEEDS", ", ".join(f"[{n}]" for n in range(seeds))))
    arguments = [str(path), "--cluster", CLUSTER, "--out", str(tmp_path / "out"), *words]
    return CliRunner().invoke(submit, arguments)


def test_a_thousand_scenarios_are_a_handful_of_calls(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", "echo $RANDOM")
    done = run_submit(tmp_path, "--array", "10", seeds=333)
    assert done.exit_code == 0, done.output  # type: ignore[attr-defined]
    assert "999 scenarios in 20 part(s)" in done.output  # type: ignore[attr-defined]
    assert calls(tmp_path) == ["sbatch", "sbatch"]


def test_a_refused_job_cancels_those_before_it(fake: Fake, tmp_path: Path) -> None:
    fake(
        "sbatch",
        f"[ $(grep -c ^sbatch {tmp_path}/calls) = 1 ] && echo 41 && exit 0\n"
        "echo 'sbatch: error: Invalid qos specification' >&2; exit 1",
    )
    fake("scancel", "")
    done = run_submit(tmp_path)
    assert done.exit_code == 2  # type: ignore[attr-defined]
    assert "Invalid qos" in done.output  # type: ignore[attr-defined]
    assert "jobs 41, submitted before, are cancelled again" in done.output  # type: ignore[attr-defined]
    assert calls(tmp_path) == ["sbatch", "sbatch", "scancel"]


def test_a_folder_that_takes_nothing_submits_nothing(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", "echo 1")
    (tmp_path / "out").write_text("in the way")
    done = run_submit(tmp_path)
    assert done.exit_code == 2  # type: ignore[attr-defined]
    assert "choose a folder on a shared file system" in done.output  # type: ignore[attr-defined]
    assert calls(tmp_path) == []


def make_submission(folder: Path, number: int) -> Submission:
    """A submission of one array of parts, each with one scenario."""
    parts = tuple(Part(number=n, nodes=1, ids=(f"s{n}",), most_s=1.0) for n in range(number))
    jobs = (SubmittedJob(id="9", script="job", nodes=1, parts=tuple(range(number))),)
    made = Submission(name="x", created_at="", cluster="c", scenarios=(), parts=parts, jobs=jobs)
    write_submission(folder, made)
    return made


def test_a_look_is_one_query_however_many_parts(fake: Fake, tmp_path: Path) -> None:
    make_submission(tmp_path, 500)
    fake("squeue", 'for i in {0..499}; do echo "9_$i|RUNNING|None|n1"; done')
    done = CliRunner().invoke(jobs_command, [str(tmp_path)])
    assert done.output.count(": running, 0 of 1 scenarios") == 500
    assert calls(tmp_path) == ["squeue"]


def test_waiting_asks_once_a_cycle_and_can_give_up(fake: Fake, tmp_path: Path) -> None:
    make_submission(tmp_path, 3)
    fake("squeue", 'for i in 0 1 2; do echo "9_$i|PENDING|Resources|"; done')
    words = [str(tmp_path), "--poll", "0.2", "--timeout", "0.5"]
    done = CliRunner().invoke(wait_command, words, standalone_mode=False)
    assert done.return_value == 124
    assert set(calls(tmp_path)) == {"squeue"}
    assert len(calls(tmp_path)) <= 4
    assert done.output.count("part 0:") == 1  # told once, while nothing changes


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", PartState.WAITING),
        ("RUNNING", PartState.RUNNING),
        ("COMPLETING", PartState.RUNNING),
        ("NODE_FAIL", PartState.LOST),
        ("PREEMPTED", PartState.LOST),
        ("BOOT_FAIL", PartState.LOST),
        ("TIMEOUT", PartState.CUT),
        ("OUT_OF_MEMORY", PartState.CUT),
        ("CANCELLED", PartState.CUT),
        ("FAILED", PartState.FAILED),
    ],
)
def test_states_of_slurm_and_of_parts(
    fake: Fake, tmp_path: Path, state: str, expected: PartState
) -> None:
    made = make_submission(tmp_path, 1)
    fake("squeue", f"echo '9|{state}|None|n1'")
    (part,) = progress(tmp_path, made, Slurm().states(["9"]))
    assert part.state is expected


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without room for a submission."""
    place = tmp_path / "full"
    place.mkdir()
    words = ["/usr/bin/mount", "-t", "tmpfs", "-o", "size=8k", "none", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["/usr/bin/umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_one_line_and_nothing_is_submitted(
    fake: Fake, tmp_path: Path, full_disk: Path
) -> None:
    fake("sbatch", "echo 1")
    done = run_submit(tmp_path, "--out", str(full_disk))
    assert done.exit_code == 2  # type: ignore[attr-defined]
    assert "No space left on device" in done.output  # type: ignore[attr-defined]
    assert len(done.output.strip().splitlines()) <= 2  # type: ignore[attr-defined]
    assert calls(tmp_path) == []
    assert list(full_disk.iterdir()) == []


def test_a_night_is_chained_to_a_job_that_tells_it(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", f"echo $((70 + $(grep -c ^sbatch {tmp_path}/calls)))")
    suite = tmp_path / "suite.yaml"
    (tmp_path / "many.yaml").write_text(SCENARIO.replace("SEEDS", "[0]"))
    suite.write_text("suite: night\nsummary: A night.\nscenarios: [many.yaml]\n")
    words = ["--suite", str(suite), "--store", str(tmp_path / "store"), "--submit", CLUSTER]
    done = CliRunner().invoke(nightly, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "out").iterdir()
    script = (folder / "collect.sbatch").read_text()
    assert "#SBATCH --dependency=afterany:71:72" in script
    assert f"-m launch.cli collect {folder}" in script
    assert f"--run {folder}/merged --store {tmp_path}/store" in script
    assert calls(tmp_path) == ["sbatch", "sbatch", "sbatch"]


def test_a_night_whose_last_job_is_refused_leaves_no_jobs(fake: Fake, tmp_path: Path) -> None:
    fake(
        "sbatch",
        f"n=$(grep -c ^sbatch {tmp_path}/calls); [ $n -le 2 ] && echo $n && exit 0\n"
        "echo 'sbatch: error: Job dependency problem' >&2; exit 1",
    )
    fake("scancel", "")
    (tmp_path / "many.yaml").write_text(SCENARIO.replace("SEEDS", "[0]"))
    words = ["--suite", str(tmp_path / "many.yaml"), "--store", str(tmp_path / "store")]
    done = CliRunner().invoke(nightly, [*words, "--submit", CLUSTER, "--out", str(tmp_path / "o")])
    assert done.exit_code == 2
    assert "Job dependency problem" in done.output
    assert "cancelled again" in done.output
    assert calls(tmp_path)[-1] == "scancel"
