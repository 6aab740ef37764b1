"""Job scripts against stored files, grouping of scenarios, and hostile values."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.scenario.spec import LimitsSpec, MicrobatchSpec, ModelSpec, ParallelSpec, Scenario
from launch.slurm.cluster import Cluster, ClusterError, changed, read_cluster
from launch.slurm.parts import Group, Part, deal, node_hours
from launch.slurm.script import Job, directives, script_text

CLUSTERS = Path(__file__).resolve().parents[2] / "configs/clusters"
STORED = Path(__file__).parent / "scripts"


def part(number: int, nodes: int) -> Part:
    return Part(number=number, nodes=nodes, ids=(f"s{number}",), most_s=60.0)


def job(cluster: Cluster, nodes: int, parts: int = 1, **changes: Any) -> Job:
    group = Group(nodes=nodes, parts=tuple(part(n, nodes) for n in range(parts)), throttle=None)
    made: dict[str, Any] = {
        "name": "dsa-nightly",
        "cluster": cluster,
        "group": group,
        "folder": "/shared/submissions/one",
        "project": "/shared/dsa-harness",
        "scenarios": ("/shared/dsa-harness/configs/suites/nightly.yaml",),
    }
    return Job(**(made | changes))


def gb200(**changes: Any) -> Cluster:
    return changed(read_cluster(CLUSTERS / "gb200.yaml"), changes)


CONTAINER = {
    "image": "/images/dsa.sqsh",
    "mounts": ["/shared:/shared", "/data:/data:ro"],
    "env": ["NCCL_DEBUG"],
}
CASES = {
    "gb200-one-node": lambda: job(gb200(), 1),
    "gb200-two-nodes": lambda: job(gb200(partition="batch", account="team"), 2),
    "gb200-rack": lambda: job(gb200(exclude="n[3-4]"), 18, exclude=("n7",)),
    "gb200-container": lambda: job(gb200(container=CONTAINER, srun=["--mpi=pmix"]), 2),
    "gb200-array": lambda: job(gb200(), 1, parts=6, dependency="afterany:12"),
    "h200-bare-metal": lambda: job(
        changed(read_cluster(CLUSTERS / "h200.yaml"), {"gpus": "gres", "gpu_type": "h200"}), 1
    ),
    "local": lambda: job(read_cluster(CLUSTERS / "local.yaml"), 2, run_words=("--megatron", "/m")),
}


@pytest.mark.parametrize("name", CASES)
def test_scripts_are_the_stored_ones(name: str) -> None:
    """After a wanted change, write ``script_text(CASES[name]())`` to the stored file."""
    assert script_text(CASES[name]()) == (STORED / f"{name}.sbatch").read_text()


@pytest.mark.parametrize("name", CASES)
def test_stored_scripts_are_shell(name: str) -> None:
    done = subprocess.run(
        ["bash", "-n", str(STORED / f"{name}.sbatch")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("nodes", "segment"), [(1, "1"), (2, "2"), (18, "18"), (36, "18"), (32, "16"), (19, "1")]
)
def test_a_segment_divides_the_nodes_and_fits_a_domain(nodes: int, segment: str) -> None:
    lines = dict(line.partition("=")[::2] for line, _ in directives(job(gb200(), nodes)))
    assert lines["--segment"] == segment


def test_every_directive_can_be_left_out() -> None:
    bare = changed(
        gb200(), {"gpus": "none", "mem": "4G", "exclusive": False, "signal_s": 0, "time": "5"}
    ).model_copy(update={"nodes_per_domain": None})
    names = {line.partition("=")[0] for line, _ in directives(job(bare, 1))}
    assert names == {
        "--job-name", "--nodes", "--ntasks-per-node", "--mem", "--time", "--output",
        "--no-requeue", "--open-mode",
    }  # fmt: skip


HOSTILE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)


@settings(deadline=None, max_examples=40)
@given(value=HOSTILE)
def test_values_reach_the_shell_as_one_word(value: str) -> None:
    cluster = gb200(environment={"X": value}, srun=[f"--comment={value}"], python=f"/p/{value}")
    text = script_text(job(cluster, 1, run_words=(value,), folder=f"/f/{value}"))
    assert f"export X={shlex.quote(value)}\n" in text
    assert f" {shlex.quote(f'--comment={value}')} " in text
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", ["a b", "x;rm", "$(id)", "a\nb", "`id`", "a#b", "'"])
def test_directives_take_plain_values_only(value: str) -> None:
    with pytest.raises(ClusterError, match="--partition"):
        gb200(partition=value)


def test_a_cluster_file_is_checked_with_places(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("cluster: x\nsummary: s\nranks_per_node: 0\ngpu: per_node\npartition: 'a b'\n")
    with pytest.raises(ClusterError) as caught:
        read_cluster(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any(line.startswith(f"{path}:3:") for line in lines)
    assert any(line.startswith(f"{path}:4:") and "gpus" in line for line in lines)


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_cluster_files_are_good(path: Path) -> None:
    assert read_cluster(path).cluster == path.stem


def scenario(name: str, cp_size: int) -> Scenario:
    return Scenario(
        id=name,
        summary="s",
        model=ModelSpec(name="small"),
        parallel=ParallelSpec(context_parallel_size=cp_size),
        microbatches=(MicrobatchSpec(sequences=(64,)),),
        limits=LimitsSpec(time_s=58.0),
    )


def test_scenarios_are_grouped_by_the_nodes_they_need() -> None:
    scenarios = [scenario(f"s{n}", cp) for n, cp in enumerate((4, 8, 4, 16, 1))]
    groups = deal(scenarios, ranks_per_node=4)
    assert [(g.nodes, [p.ids for p in g.parts]) for g in groups] == [
        (1, [("s0", "s2", "s4")]),
        (2, [("s1",)]),
        (4, [("s3",)]),
    ]
    assert node_hours(groups) == pytest.approx((90 + 180 + 2 * 150 + 4 * 150) / 3600)


def test_a_thousand_scenarios_are_few_jobs() -> None:
    scenarios = [scenario(f"s{n}", 4 << (n % 3)) for n in range(1000)]
    groups = deal(scenarios, ranks_per_node=4, parts_per_group=8)
    assert len(groups) == 3
    dealt = [name for group in groups for p in group.parts for name in p.ids]
    assert sorted(dealt) == sorted(s.id for s in scenarios)
    numbers = [p.number for group in groups for p in group.parts]
    assert numbers == list(range(24))


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("4", 4), ("143", 143), ("null", 3)])
def test_a_script_ends_with_the_code_of_its_run(tmp_path: Path, code: str, status: int) -> None:
    run = tmp_path / "parts/0/20260101T000000Z-part"
    run.mkdir(parents=True)
    (run / "run.json").write_text(f'{{\n "name": "x",\n "exit_code": {code},\n "notes": []\n}}\n')
    text = script_text(job(read_cluster(CLUSTERS / "local.yaml"), 1, folder=str(tmp_path)))
    tail = text[text.index("# torchrun only") :]
    done = subprocess.run(
        ["bash", "-c", f"folder={tmp_path}/parts/0\n{tail}"], capture_output=True, check=False
    )
    assert done.returncode == status
