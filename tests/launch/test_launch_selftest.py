"""``dsa-harness selftest``: gates that pass, fail, hang, crash and lack something."""

import json
import signal
import sys

import pytest
import torch
from click.testing import CliRunner

from launch.gates import lists, probes
from launch.gates.gate import Gate, GateState, run_gates
from launch.selftest import selftest

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a GPU changes")


def gate(name, code, *, limit_s=60.0, behind=()):
    return Gate(
        name=name,
        what=f"{name} holds",
        command=(sys.executable, "-c", code),
        limit_s=limit_s,
        todo=f"mend {name}",
        behind=behind,
    )


PASSES = "print('as it should be')"
FAILS = "import sys; print('one line'); print('the reason'); sys.exit(1)"
LACKS = "import sys; print('missing usable GPU'); sys.exit(5)"
HANGS = "import time; print('waiting', flush=True); time.sleep(600)"
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("code", "limit_s", "state", "found"),
    [
        (PASSES, 60.0, GateState.PASSED, "as it should be"),
        (FAILS, 60.0, GateState.FAILED, "exit code 1"),
        (LACKS, 60.0, GateState.NOT_RUN, "missing usable GPU"),
        (HANGS, 3.0, GateState.FAILED, "did not end within 3 s"),
        (CRASHES, 60.0, GateState.FAILED, "ended by signal SIGSEGV"),
    ],
    ids=["passes", "fails", "lacks", "hangs", "crashes"],
)
def test_a_gate_says_how_it_ended(code, limit_s, state, found):
    (result,) = run_gates([gate("g", code, limit_s=limit_s)])
    assert (result.state, result.found) == (state, found)
    told = "\n".join(result.lines)
    assert ("do: mend g" in told) == (state is GateState.FAILED)


def test_a_failed_gate_shows_its_last_lines():
    (result,) = run_gates([gate("g", FAILS)])
    assert result.tail == ("one line", "the reason")


def test_what_stands_behind_a_gate_that_did_not_pass_is_not_run():
    gates = [
        gate("first", FAILS),
        gate("second", PASSES, behind=("first",)),
        gate("third", PASSES, behind=("second",)),
        gate("apart", PASSES),
    ]
    found = {result.gate.name: result for result in run_gates(gates)}
    assert found["second"].state is GateState.NOT_RUN
    assert "stands behind first" in found["second"].found
    assert found["third"].state is GateState.NOT_RUN
    assert found["third"].found == found["second"].found
    assert found["apart"].state is GateState.PASSED


def test_children_of_a_gate_do_not_outlive_it(tmp_path):
    told = tmp_path / "pid"
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open({str(told)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    (result,) = run_gates([gate("g", code, limit_s=5.0)])
    assert result.state is GateState.FAILED
    with pytest.raises(ProcessLookupError):
        _wait_gone(int(told.read_text()))


def test_sigterm_ends_the_children_of_a_gate_too(tmp_path):
    told = tmp_path / "pid"
    code = (
        "import os, signal, time; "
        f"open({str(told)!r}, 'w').write(str(os.getpid())); "
        "os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)"
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as found:
        list(run_gates([gate("g", code)]))
    assert found.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ProcessLookupError):
        _wait_gone(int(told.read_text()))


def _wait_gone(pid):
    """Raise ProcessLookupError once a killed process is gone, zombies of others included."""
    import os
    import time

    for _ in range(100):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stream:
            if stream.read().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError
        time.sleep(0.05)


def call(monkeypatch, gates, *arguments, hardware=()):
    monkeypatch.setattr(lists, "machine_gates", lambda: tuple(gates))
    monkeypatch.setattr(lists, "hardware_gates", lambda: tuple(hardware))
    return CliRunner().invoke(selftest, arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("codes", "code"),
    [((PASSES, PASSES), 0), ((PASSES, LACKS), 0), ((PASSES, FAILS), 1)],
    ids=["all pass", "one lacks", "one fails"],
)
def test_exit_codes(monkeypatch, codes, code):
    gates = [gate(f"g{number}", text) for number, text in enumerate(codes)]
    assert call(monkeypatch, gates).return_value == code


def test_without_any_gate_of_the_gpu_nothing_ran(monkeypatch):
    first, second = [gate("m", PASSES)], [gate("h", LACKS)]
    assert call(monkeypatch, first, "--hardware", hardware=second).return_value == 5
    assert call(monkeypatch, first, hardware=second).return_value == 0


def test_what_was_found_is_written_for_sending_back(monkeypatch, tmp_path):
    out = tmp_path / "found.json"
    call(monkeypatch, [gate("a", FAILS), gate("b", PASSES)], "--json", str(out))
    found = json.loads(out.read_text())
    assert [(item["gate"], item["state"]) for item in found] == [("a", "failed"), ("b", "passed")]
    assert found[0]["tail"][-1] == "the reason"


def test_unknown_names_are_refused(monkeypatch):
    found = CliRunner().invoke(selftest, ["--only", "nothing"])
    assert found.exit_code == 2
    assert "no gate is called nothing" in found.output


def test_gates_stand_behind_gates_that_come_before():
    seen: set[str] = set()
    for item in (*lists.machine_gates(), *lists.hardware_gates()):
        assert set(item.behind) <= seen, item.name
        assert item.name not in seen
        seen.add(item.name)


@needs_no_gpu
@pytest.mark.parametrize(
    "words",
    [
        ["fork", "cuda"],
        ["context"],
        ["canary", "nccl", "1"],
        ["kernels", "x"],
        ["flash_mla", "x"],
        ["graph"],
    ],
    ids=" ".join,
)
def test_probes_of_a_gpu_name_what_is_missing(words, capsys):
    assert probes.PROBES[words[0]](*words[1:]) == 5
    assert capsys.readouterr().out.splitlines()[-1] == "missing usable GPU"


@pytest.mark.ranks
def test_a_canary_that_adds_up_wrongly_fails(monkeypatch, capsys):
    assert probes.canary("gloo", "1", "2") == 0
    assert "gloo over 1, 2 rank(s)" in capsys.readouterr().out
    monkeypatch.setattr(probes, "_collective", lambda *a, **k: False)
    assert probes.canary("gloo", "2") == 1


@pytest.mark.slow
@pytest.mark.ranks
@needs_no_gpu
def test_the_whole_self_test_ends_honestly_without_a_gpu():
    found = CliRunner().invoke(selftest, ["--hardware"], standalone_mode=False)
    assert found.return_value == 5, found.output
    assert "failed" not in found.output.replace("0 failed", "")
