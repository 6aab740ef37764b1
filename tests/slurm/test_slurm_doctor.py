"""The doctor: each check good where all is well, and bad or absent with advice where it is not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_slurm_client import CLUSTER, Fake

from harness.record.verdict import ExitCode
from launch.doctor import doctor
from launch.health.check import Check, Health, exit_code
from launch.health.cluster import cluster_checks
from launch.health.node import node_checks
from launch.slurm.client import Slurm
from launch.slurm.cluster import read_cluster


def answer(host: str, **changes: object) -> str:
    found: dict[str, object] = {
        "host": host,
        "python": "3.12.1",
        "time": time.time(),
        "shared": "seen and written",
        "gpus": 4,
        "imex": ["/dev/nvidia-caps-imex-channels/channel0"],
        "fabric": {"state": "Completed", "cluster_uuid": "u", "clique_id": "1"},
        "variables": {"NCCL_DEBUG": "WARN"},
    }
    return json.dumps(found | changes)


def healthy(fake: Fake, *answers: str) -> None:
    for name in ("sbatch", "squeue", "scancel", "sacct"):
        fake(name, "")
    fake("scontrol", "echo 'Slurmctld(primary) at login is UP'")
    fake("sinfo", "echo 'batch*|up|18|gpu:gb200:4|4:00:00'")
    lines = "\n".join(answers)
    fake("srun", f"cat <<'END'\n{lines}\nEND")


def look(tmp_path: Path, nodes: int = 2, **changes: object) -> dict[str, Check]:
    cluster = read_cluster(Path(CLUSTER)).model_copy(update=changes)
    found = cluster_checks(cluster, Slurm(timeout_s=10), tmp_path / "shared", nodes)
    return {check.name: check for check in found}


def test_a_healthy_cluster_is_good(fake: Fake, tmp_path: Path) -> None:
    healthy(fake, answer("n1"), answer("n2"))
    found = look(tmp_path, gpus="per_node")
    assert {check.health for check in found.values()} == {Health.GOOD}
    assert exit_code(found.values()) is ExitCode.OK
    assert not list((tmp_path / "shared").iterdir())


@pytest.mark.parametrize(
    ("changes", "name", "health"),
    [
        ({"shared": "not there"}, "n2: shared folder", Health.BAD),
        ({"time": 1.0}, "n2: clock", Health.ABSENT),
        ({"fabric": {"state": "In Progress"}}, "n2: fabric", Health.BAD),
        ({"imex": []}, "n2: IMEX", Health.ABSENT),
        (
            {"fabric": {"state": "Completed", "cluster_uuid": "v", "clique_id": "1"}},
            "NVLink domain",
            Health.ABSENT,
        ),
    ],
)
def test_what_a_node_lacks_is_told(
    fake: Fake, tmp_path: Path, changes: dict[str, object], name: str, health: Health
) -> None:
    healthy(fake, answer("n1"), answer("n2", **changes))
    check = look(tmp_path)[name]
    assert check.health is health
    assert check.advice
    assert check.advice in check.text


def test_what_a_cluster_lacks_is_told(fake: Fake, tmp_path: Path) -> None:
    healthy(fake, answer("n1"))
    assert look(tmp_path)["compute nodes"].health is Health.BAD
    assert "batch" in look(tmp_path, partition="none")["partition"].found
    fake("sinfo", "echo 'batch*|up|18|(null)|1:00'")
    assert look(tmp_path, gpus="gres")["partition"].health is Health.BAD
    fake("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert look(tmp_path)["accounting"].health is Health.ABSENT
    fake("scontrol", "echo 'Slurmctld is DOWN' >&2; exit 1")
    assert look(tmp_path)["controller"].health is Health.BAD


def test_without_slurm_it_says_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look(tmp_path)
    assert list(found) == ["Slurm commands"]
    assert found["Slurm commands"].health is Health.BAD


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    found = {check.name: check for check in node_checks(tmp_path / "runs")}
    assert found["Python"].health is Health.GOOD
    assert found["torch"].health is Health.GOOD
    assert found["fork probe"].health is Health.GOOD
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(doctor, ["--out", str(tmp_path / "file")], standalone_mode=False)
    assert done.return_value == 1
    assert "expected a folder" in done.output


@pytest.mark.ranks
def test_a_real_cluster_is_looked_at(jobs) -> None:  # type: ignore[no-untyped-def]
    done = jobs.tool(
        "doctor", "--cluster", jobs.cluster(gpus="per_node"), "--nodes", "2",
        "--shared", str(jobs.folder / "shared"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 answered: n1, n2" in done.stdout
    assert done.stdout.count("seen and written") == 2
