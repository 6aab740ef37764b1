"""Submissions on a real Slurm of two nodes: finished, cut, cancelled, lost, and resumed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from slurm_jobs import ROOT, Jobs

from reports.comparison.compare import compare
from reports.store import load_run

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]


def test_the_quick_start_across_nodes_equals_the_local_one(jobs: Jobs, tmp_path: Path) -> None:
    scenarios = str(ROOT / "scenarios/quickstart/cudnn-multi.yaml")
    cluster = jobs.cluster(ranks_per_node=2, gpus="per_node")
    submission = jobs.submit(scenarios, "--cluster", cluster, engine="")
    waited = jobs.wait(submission)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    local = jobs.tool("run", "--ranks", "4", "--out", str(tmp_path / "local"), scenarios)
    assert local.returncode == 0
    (folder,) = (tmp_path / "local").iterdir()
    found = compare(load_run(folder), jobs.merged(submission))
    moved = [
        change
        for scenario in found.scenarios
        for change in scenario.behaviour
        if change.topic not in ("timings", "memory")
    ]
    assert moved == []
    assert (found.only_before, found.only_after) == ((), ())
    hosts = {
        rank.host
        for result in jobs.merged(submission).results
        for rank in result.last.ranks
        if len(result.last.ranks) == 4
    }
    assert hosts == {"n1", "n2"}


def test_an_array_of_six_keeps_its_throttle(jobs: Jobs) -> None:
    names = [f"s{number}" for number in range(6)]
    paths = [jobs.scenario(name) for name in names]
    submission = jobs.submit(*paths, "--cluster", jobs.cluster(), "--array", "6", "--throttle", "2")
    (job,) = jobs.record(submission).jobs
    assert len(job.parts) == 6
    most = 0

    def over() -> bool:
        nonlocal most
        words = ["squeue", "-h", "-r", "-t", "all", "-j", job.id, "-o", "%T"]
        states = jobs.sandbox.run(words).stdout.split()
        most = max(most, states.count("RUNNING"))
        return len(states) == 6 and set(states) <= {"COMPLETED", "FAILED"}

    jobs.wait_until(over, limit_s=300)
    assert 1 <= most <= 2
    waited = jobs.wait(submission)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert jobs.verdicts(submission) == {f"tiny/{name}": "pass" for name in names}


def submit_gated(jobs: Jobs) -> tuple[Path, str, str]:
    """A part whose first scenario passes and whose second waits; returns folder, job, cluster."""
    paths = [jobs.scenario("first"), jobs.scenario("gated"), jobs.scenario("last")]
    cluster = jobs.cluster()
    submission = jobs.submit(*paths, "--cluster", cluster)
    jobs.wait_for_phase(submission, "gated")
    return submission, jobs.record(submission).jobs[0].id, cluster


def finish(jobs: Jobs, submission: Path, cluster: str) -> None:
    """What was cut short is resumed; the report is that of an undisturbed run, attempts apart."""
    jobs.open_gate()
    again = jobs.again(submission, cluster)
    assert again.returncode == 0, again.stderr
    waited = jobs.wait(submission)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    names = ("first", "gated", "last")
    assert jobs.verdicts(submission) == {f"tiny/{name}": "pass" for name in names}
    results = {result.id: result for result in jobs.merged(submission).results}
    assert len(results["tiny/first"].attempts) == 1
    assert len(results["tiny/gated"].attempts) >= 2
    assert str(results["tiny/gated"].attempts[0].verdict) == "infrastructure"


def test_a_job_cut_by_its_time_limit_keeps_what_it_measured(jobs: Jobs) -> None:
    submission, job, cluster = submit_gated(jobs)
    jobs.sandbox.run(["scontrol", "update", f"JobId={job}", "EndTime=now"])
    waited = jobs.wait(submission)
    assert "TIMEOUT" in waited.stdout
    assert waited.returncode != 0
    assert jobs.verdicts(submission)["tiny/first"] == "pass"
    assert "cut short" in waited.stderr
    finish(jobs, submission, cluster)


def test_a_cancelled_job_keeps_what_it_measured(jobs: Jobs) -> None:
    submission, _, cluster = submit_gated(jobs)
    cancelled = jobs.tool("cancel", str(submission))
    assert cancelled.returncode == 0
    waited = jobs.wait(submission)
    assert "CANCELLED" in waited.stdout
    assert jobs.verdicts(submission)["tiny/first"] == "pass"
    finish(jobs, submission, cluster)


def test_a_warned_job_ends_with_a_report(jobs: Jobs) -> None:
    """What `--signal` does before the limit: the batch shell is warned and passes it on."""
    submission, job, cluster = submit_gated(jobs)
    jobs.sandbox.run(["scancel", "--batch", "--signal=USR1", job])
    waited = jobs.wait(submission)
    assert waited.returncode == 143, waited.stdout + waited.stderr
    (run,) = submission.glob("parts/0/*-part")
    record = load_run(run).record
    assert record is not None
    assert (record.state, record.exit_code) == ("interrupted", 143)
    assert (run / "report.md").exists()
    assert jobs.verdicts(submission)["tiny/first"] == "pass"
    finish(jobs, submission, cluster)


def test_a_lost_node_is_infrastructure_and_left_out_afterwards(jobs: Jobs) -> None:
    submission, job, cluster = submit_gated(jobs)
    node = jobs.sandbox.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    jobs.sandbox.crash_node(node)
    jobs.sandbox.down_node(node)
    try:
        waited = jobs.wait(submission)
        assert "NODE_FAIL" in waited.stdout
        assert "lost" in waited.stderr
        assert jobs.verdicts(submission)["tiny/first"] == "pass"
        finish(jobs, submission, cluster)
        assert jobs.record(submission).suspects == (node,)
        results = {r.id: r for r in jobs.merged(submission).results}
        assert {rank.host for rank in results["tiny/gated"].last.ranks} == {"n1", "n2"} - {node}
    finally:
        jobs.sandbox.start_node(node)


def test_a_refused_job_takes_the_others_back(jobs: Jobs) -> None:
    paths = [jobs.scenario("small"), jobs.scenario("large", ranks=4)]
    done = jobs.tool(
        "submit", *paths, "--cluster", jobs.cluster(), "--out", str(jobs.out), "--engine", "x:y"
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "node" in line.lower()
    assert "cancelled again" in line
    listed = ["squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%i"]
    jobs.wait_until(lambda: jobs.sandbox.run(listed).stdout.split() == [])


def test_a_wrong_partition_is_one_line(jobs: Jobs) -> None:
    done = jobs.tool(
        "submit", jobs.scenario("small"), "--cluster", jobs.cluster(), "--partition", "none",
        "--out", str(jobs.out),
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "partition" in done.stderr
    assert "nothing was submitted" in done.stderr


def test_a_folder_that_a_node_does_not_see_is_named(jobs: Jobs) -> None:
    submission = jobs.submit(jobs.scenario("only"), "--cluster", jobs.cluster(), "--dry-run")
    (script,) = submission.glob("*.sbatch")
    hidden = script.read_text().replace(f"folder={submission}", "folder=/nowhere")
    script.write_text(hidden)
    number = jobs.sandbox.run(["sbatch", "--parsable", str(script)]).stdout.strip()
    jobs.wait_until(lambda: jobs.state(number) == "FAILED")
    (log,) = (submission / "logs").iterdir()
    assert "shared file system" in log.read_text()


def test_plain_srun_runs_a_scenario(jobs: Jobs) -> None:
    path = jobs.scenario("plain", ranks=2)
    env = {**jobs.sandbox.env, "PYTHONPATH": f"{ROOT / 'tests/runtime'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["srun", "-N1", "-n2", "python3", str(ROOT / "launch/run.py"), "--scenario", path,
         "--engine", "tiny_engine:execute", "--out", str(jobs.out)],
        env={**env, "PATH": f"{ROOT / '.venv/bin'}:{env['PATH']}"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = jobs.out.iterdir()
    assert str(load_run(run).results[0].verdict) == "pass"
