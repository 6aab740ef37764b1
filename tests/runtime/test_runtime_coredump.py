"""CUDA core dumps: variables, commands, and what cuda-gdb prints, made up as it prints it."""

import os
import sys
import time
from dataclasses import replace

import pytest

from harness.record.codec import dumps, loads
from harness.record.device_fault import CoreDump, DumpedKernel
from harness.record.result import RankOutcome
from harness.runtime import child
from harness.runtime.attempts import Executed
from harness.runtime.coredump import (
    MOST_DUMPS,
    collect,
    core_dump_environment,
    gdb_command,
    inspect,
    parse_gdb_output,
)

OUTPUT = """\
Opening GPU coredump: cuda.node1.example.4711.1764425000
[Current focus set to CUDA kernel 1, grid 42, cluster (0,0,0), block (3,1,0), thread (64,0,0), \
device 0, sm 17, warp 3, lane 0]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f31abb9f6d0  top_k<2048>(int*, int) (topk.cu:88)
#0  0x00007f31abb9f6e0 in top_k<2048>(int*, int)<<<(132,1,1),(256,1,1)>>> () at topk.cu:88
  Kernel Parent Dev Grid Status                       SMs Mask GridDim  BlockDim Invocation
       0      -   0   41 Active 0x00000000000000000000000000001 (2,1,1)   (32,1,1) copy()
*      1      -   0   42 Active 0x00000000000000000000000020000 (132,1,1) (256,1,1) top_k<2048>(in\
t*, int)(keys=0x7f31, n=2048)
#0  0x00007f31abb9f6e0 in top_k<2048>(int*, int)<<<(132,1,1),(256,1,1)>>> () at topk.cu:88
#1  0x00007f31abb9f000 in inner() at topk.cu:12
"""


def test_a_dump_is_read_with_all_it_says():
    dump = parse_gdb_output(OUTPUT, "ranks/cuda.x")
    assert dump == CoreDump(
        file="ranks/cuda.x",
        exception="Warp Illegal Address",
        pc="0x7f31abb9f6d0",
        function="top_k<2048>(int*, int) (topk.cu:88)",
        device=0,
        sm=17,
        block=(3, 1, 0),
        thread=(64, 0, 0),
        kernels=(
            DumpedKernel(
                kernel=0,
                device=0,
                grid=41,
                status="Active",
                grid_dim=(2, 1, 1),
                block_dim=(32, 1, 1),
                invocation="copy()",
            ),
            DumpedKernel(
                kernel=1,
                device=0,
                grid=42,
                status="Active",
                grid_dim=(132, 1, 1),
                block_dim=(256, 1, 1),
                invocation="top_k<2048>(int*, int)(keys=0x7f31, n=2048)",
                focus=True,
            ),
        ),
        frames=(
            "0x00007f31abb9f6e0 in top_k<2048>(int*, int)<<<(132,1,1),(256,1,1)>>> () "
            "at topk.cu:88",
            "0x00007f31abb9f000 in inner() at topk.cu:12",
        ),
    )
    assert loads(CoreDump, dumps(dump)) == dump


@pytest.mark.parametrize("length", [0, 60, 200, 330, 700])
def test_cut_output_gives_what_is_there(length):
    dump = parse_gdb_output(OUTPUT[:length], "x")
    assert (dump.exception == "Warp Illegal Address") is (length > 300)
    assert (dump.sm == 17) is (length >= 200)
    assert len(dump.kernels) <= 2


@pytest.mark.timeout(60)
def test_hostile_output_is_read_in_linear_time():
    parse_gdb_output("* " + " 1" * 200_000 + "(" * 10_000, "x")
    parse_gdb_output("CUDA Exception: " + " " * 500_000 + "x", "x")
    assert parse_gdb_output("#" + "9" * 10_000 + " x", "x").frames == ()


def test_the_light_set_is_asked_for_and_the_user_s_words_stay(tmp_path):
    wanted = core_dump_environment(tmp_path, {})
    assert wanted["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
    assert wanted["CUDA_COREDUMP_FILE"] == f"{tmp_path}/cuda.%h.%p.%t"
    flags = wanted["CUDA_COREDUMP_GENERATION_FLAGS"].split(",")
    assert "skip_global_memory" in flags and "skip_abort" in flags
    mine = {"CUDA_COREDUMP_GENERATION_FLAGS": "", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "0"}
    assert set(core_dump_environment(tmp_path, mine)) == {
        "CUDA_COREDUMP_FILE",
        "CUDA_COREDUMP_SHOW_PROGRESS",
    }


def test_the_command_runs_no_start_up_files_and_takes_no_odd_names():
    words = gdb_command("cuda-gdb", "cuda.node1.4711.1")
    assert words[:3] == ["cuda-gdb", "-batch", "-nx"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "-ex"] == [
        "target cudacore cuda.node1.4711.1",
        "info cuda kernels",
        "bt",
    ]
    for name in ("a b", "x;shell id", "x\nshell id", "-x", "../x"):
        with pytest.raises(ValueError, match="expected letters, digits"):
            gdb_command("cuda-gdb", name)


@pytest.fixture
def fake_gdb(tmp_path, monkeypatch):
    """Put a stand-in for cuda-gdb on the path that prints a text."""

    def install(out="", err="", code=0, sleep=0):
        script = tmp_path / "bin" / "cuda-gdb"
        script.parent.mkdir()
        script.write_text(
            f"#!{sys.executable}\nimport sys, time\ntime.sleep({sleep})\n"
            f"sys.stdout.write({out!r})\nsys.stderr.write({err!r})\nsys.exit({code})\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent))

    return install


def _dump_file(folder, name, age_s=0):
    path = folder / name
    path.write_text("dump")
    moment = time.time() - age_s
    os.utime(path, (moment, moment))
    return path


def test_dumps_are_told_by_their_process_ids(fake_gdb, tmp_path):
    fake_gdb(OUTPUT)
    for number in range(MOST_DUMPS + 1):
        _dump_file(tmp_path, f"cuda.node1.example.{4700 + number}.17", age_s=100 - number)
    for name in ("other", "cuda.4701", "cuda.n.x.17"):
        (tmp_path / name).write_text("")
    ranks = [RankOutcome(global_rank=3, pid=4702), RankOutcome(global_rank=1, pid=4701)]
    found = collect(tmp_path, tmp_path, ranks)
    assert [dump.global_rank for dump in found] == [1, 3], "oldest first, others' left out"
    assert [dump.file for dump in found] == [f"cuda.node1.example.{n}.17" for n in (4701, 4702)]
    assert {dump.exception for dump in found} == {"Warp Illegal Address"}
    every = [RankOutcome(global_rank=n, pid=4700 + n) for n in range(MOST_DUMPS + 1)]
    assert len(collect(tmp_path, tmp_path, every)) == MOST_DUMPS
    assert collect(tmp_path / "none", tmp_path, every) == ()
    assert collect(tmp_path, tmp_path, [RankOutcome(global_rank=0)]) == ()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"err": "x\nnot a core dump\n", "code": 1}, "showed no exception: not a core dump"),
        ({"code": 7}, "showed no exception: exit status 7"),
        ({"sleep": 60}, "did not finish within 1 s"),
    ],
)
def test_what_goes_wrong_is_said(fake_gdb, tmp_path, answer, problem):
    fake_gdb(**answer)
    path = _dump_file(tmp_path, "cuda.n.1.1")
    limit_s = 1.0 if "sleep" in answer else 30.0
    assert problem in inspect(path, tmp_path, limit_s=limit_s).problem


def test_without_the_debugger_the_file_is_still_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    dump = inspect(_dump_file(tmp_path, "cuda.n.1.1"), tmp_path)
    assert dump.file == "cuda.n.1.1" and "cuda-gdb was not found" in dump.problem
    odd = _dump_file(tmp_path, "cuda.a b.1.1")
    (tmp_path / "cuda-gdb").write_text("#!/bin/sh\n")
    (tmp_path / "cuda-gdb").chmod(0o755)
    assert "expected letters, digits" in inspect(odd, tmp_path).problem


@pytest.mark.parametrize(("asked", "count"), [(True, 1), (False, 0)])
def test_a_faulty_attempt_takes_its_dumps_into_the_record(
    make_places, make_planned, fake_gdb, asked, count
):
    fake_gdb(OUTPUT)
    places = make_places(core_dumps=asked)
    tasks = places.tasks(make_planned(ranks=1), 1, "scenario")
    assert tasks[0].dumps == places.folder.path / "dumps"
    tasks[0].dumps.mkdir()
    _dump_file(tasks[0].dumps, "cuda.n.4711.1")
    rank = RankOutcome(global_rank=0, pid=4711, exit_code=1)
    facts = {"journals": (), "started_at": "", "duration_s": 0.0, "isolation": "scenario"}
    done = places.with_core_dumps(Executed(ranks=(rank,), **facts), tasks)
    assert [dump.file for dump in done.core_dumps] == ["dumps/cuda.n.4711.1"] * count
    well = replace(rank, exit_code=0, completed=True)
    assert places.with_core_dumps(Executed(ranks=(well,), **facts), tasks).core_dumps == ()


@pytest.mark.parametrize(
    ("device", "asked", "there"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
def test_a_rank_on_a_gpu_asks_for_dumps(
    make_places, make_planned, monkeypatch, device, asked, there
):
    item = replace(make_planned(ranks=1), device=device)
    task = make_places(core_dumps=asked, engine="json:dumps").tasks(item, 1, "scenario")[0]
    monkeypatch.setattr(os, "environ", {"PATH": "/bin"})
    child._start(task)
    assert ("CUDA_COREDUMP_FILE" in os.environ) is there
    assert task.dumps.exists() is there
