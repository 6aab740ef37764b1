"""Native stacks through py-spy: a stand-in program for every answer, and the real one once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from harness.runtime import pyspy
from harness.runtime.processes import process_state
from harness.runtime.pyspy import Target, dump, dump_command, find, innermost, tracing_rights


def _frame(name, file="lib.so", line=0):
    module = f"/x/{file}" if ".so" in file else None
    return {"name": name, "short_filename": file, "module": module, "line": line}


STACKS = [
    {"thread_name": "ThreadPool", "frames": [_frame("idle")]},
    {
        "thread_name": "MainThread",
        "frames": [
            _frame("0x7f00", "libc.so.6"),
            _frame("waitRecv", "libtorch_cpu.so"),
            _frame("pybind11::cpp_function::dispatcher", "libtorch_python.so"),
            _frame("all_reduce", "distributed_c10d.py", 41),
        ],
    },
]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a stand-in for py-spy on the path; it answers by process id."""

    def install(**answers):
        folder = tmp_path / "bin"
        folder.mkdir()
        script = folder / "py-spy"
        script.write_text(
            f"#!{sys.executable}\n"
            "import json, pathlib, sys, time\n"
            f"answers = json.loads({json.dumps(json.dumps(answers))})\n"
            "answer = answers[sys.argv[sys.argv.index('--pid') + 1]]\n"
            f"asked = pathlib.Path({str(tmp_path / 'asked')!r}).open('a')\n"
            "print(*sys.argv[1:], file=asked, flush=True)\n"
            "time.sleep(answer.get('sleep', 0))\n"
            "sys.stdout.write(answer.get('out', ''))\n"
            "sys.stderr.write(answer.get('err', ''))\n"
            "sys.exit(answer.get('code', 0))\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


def _targets(folder, *pids, **more):
    return [
        Target(global_rank=rank, pid=pid, file=folder / f"rank{rank}.pyspy.json", **more)
        for rank, pid in enumerate(pids)
    ]


def test_each_rank_s_stacks_are_written_and_its_place_is_noted(program, tmp_path):
    program(**{"101": {"out": json.dumps(STACKS)}, "102": {"out": json.dumps(STACKS[:1])}})
    notes = dump(_targets(tmp_path, 101, 102), tmp_path)
    assert [note.text for note in notes] == [
        "rank 0: waitRecv (libtorch_cpu.so) < all_reduce (distributed_c10d.py:41); "
        "all threads in rank0.pyspy.json",
        "rank 1: idle (lib.so); all threads in rank1.pyspy.json",
    ]
    assert json.loads((tmp_path / "rank0.pyspy.json").read_text()) == STACKS
    asked = sorted((tmp_path / "asked").read_text().splitlines())
    assert asked == ["dump --native --json --pid 101", "dump --native --json --pid 102"]


def test_a_stopped_process_is_read_without_stopping_it(tmp_path):
    target = _targets(tmp_path, 7, stopped=True)[0]
    assert dump_command("py-spy", target) == [
        *("py-spy", "dump", "--nonblocking", "--json", "--pid", "7")
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"code": 1, "err": "Permission Denied: Try running again with sudo\n"},
            "py-spy failed: permission denied; the supervisor has",
        ),
        (
            {"code": 1, "err": "Error: Failed\n\nCaused by:\n  0: gone\nStack backtrace:\n 0: x"},
            "py-spy failed: Error: Failed Caused by: 0: gone",
        ),
        ({"code": 3}, "py-spy failed: no reason given"),
        ({"out": "[{"}, "py-spy wrote no stack that can be read"),
        ({"out": "[]"}, "py-spy wrote no stack that can be read"),
        ({"out": '{"a": 1}'}, "py-spy wrote no stack that can be read"),
        ({"sleep": 60}, "py-spy did not finish in time"),
    ],
)
def test_what_goes_wrong_is_said_and_leaves_no_file(program, tmp_path, answer, expected):
    program(**{"101": answer})
    limit_s = 1.0 if "sleep" in answer else 20.0
    (note,) = dump(_targets(tmp_path, 101), tmp_path, limit_s=limit_s)
    assert note.text.startswith(f"rank 0: {expected}")
    assert not (tmp_path / "rank0.pyspy.json").exists()


def test_without_the_program_one_note_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(pyspy, "find", lambda: None)
    (note,) = dump(_targets(tmp_path, 1, 2), tmp_path)
    assert "not installed (extra 'debug')" in note.text


def test_a_program_that_cannot_be_started(tmp_path, monkeypatch):
    (tmp_path / "py-spy").write_text("no program")
    monkeypatch.setattr(pyspy, "find", lambda: str(tmp_path / "py-spy"))
    (note,) = dump(_targets(tmp_path, 1), tmp_path)
    assert note.text.startswith("rank 0: py-spy could not be started")


@pytest.mark.parametrize(
    ("bits", "yama", "expected"),
    [
        (1 << 19, "1\n", "has CAP_SYS_PTRACE, kernel.yama.ptrace_scope is 1"),
        (0, None, "has no CAP_SYS_PTRACE, kernel.yama.ptrace_scope is absent"),
    ],
)
def test_the_right_to_trace_is_told_from_the_kernel_s_files(tmp_path, bits, yama, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{bits:016x}\nCapBnd:\t0\n")
    if yama is not None:
        (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text(yama)
    assert tracing_rights(tmp_path) == f"the supervisor {expected}"


def test_consent_to_be_traced_is_harmless():
    code = "from harness.runtime.pyspy import permit_tracing; permit_tracing()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_hostile_dump_is_no_error(tmp_path):
    (tmp_path / "d").write_text("[" * 100_000)
    assert innermost(tmp_path / "d") is None
    (tmp_path / "d").write_text(json.dumps([{"thread_name": "MainThread", "frames": ["x"]}]))
    assert innermost(tmp_path / "d") is None


def _wait_for_state(pid, state):
    while process_state(pid) != state:
        time.sleep(0.01)


@pytest.fixture
def sleeper():
    code = "import time\ndef asleep():\n    print('on', flush=True)\n    time.sleep(600)\nasleep()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    _wait_for_state(process.pid, "S")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
@pytest.mark.parametrize("stopped", [False, True])
def test_the_real_py_spy_sees_a_sleeping_and_a_stopped_process(tmp_path, sleeper, stopped):
    if stopped:
        os.kill(sleeper.pid, signal.SIGSTOP)
        _wait_for_state(sleeper.pid, "T")
    (note,) = dump(_targets(tmp_path, sleeper.pid, stopped=stopped), tmp_path)
    if "permission denied" in note.text:
        pytest.skip(note.text)
    assert "asleep (<string>:4)" in note.text
    assert ("nanosleep" in note.text) is not stopped, "native frames need a running process"
    assert process_state(sleeper.pid) == ("T" if stopped else "S")


@pytest.mark.ranks
def test_a_deadline_leaves_the_native_stacks_of_all_ranks(fresh, make_planned):
    runner = fresh(inject=("sigstop@1:select",))
    done = runner.run(make_planned(time_s=1.0), 1)
    texts = [note.text for note in done.notes if note.topic == pyspy.TOPIC]
    if find() is None:
        assert len(texts) == 1 and "not installed" in texts[0]
        return
    if any("permission denied" in text for text in texts):
        pytest.skip(texts[0])
    assert "(libtorch_cpu.so)" in texts[0]
    assert "tiny_engine.py" in texts[0] and "rank0.pyspy.json" in texts[0]
    assert "inject.py" in texts[1], "of the stopped rank, which writes no stack itself"
    assert len(list(runner._places.folder.path.glob("ranks/*/1/rank*.pyspy.json"))) == 2


@pytest.mark.ranks
def test_an_attempt_without_a_deadline_asks_nobody(fresh, make_planned):
    done = fresh(inject=("sigsegv@1:score",)).run(make_planned(), 1)
    assert [note for note in done.notes if note.topic == pyspy.TOPIC] == []
