"""The counter of the kernel's out-of-memory killer, in made-up trees of cgroup v1 and v2."""

import signal

import pytest

from harness.record.phase import Phase
from harness.record.result import RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.cgroup import OomWatch, oom_kills, with_oom_kills
from harness.runtime.first_fault import first_fault

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


@pytest.fixture
def tree(tmp_path):
    """Write /proc/self/cgroup and counter files below a made-up root."""

    def write(membership, files):
        process = tmp_path / "proc/self"
        process.mkdir(parents=True, exist_ok=True)
        (process / "cgroup").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        ("0::/job/step\n", "job/step/memory.events", EVENTS),
        ("0::/job/step\n", "job/memory.events", EVENTS),
        ("0::/job/step\n", "unified/job/step/memory.events", EVENTS),
        ("0::/host/path/of/container\n", "memory.events", EVENTS),
        ("0::/../../outside\n", "memory.events", EVENTS),
        ("9:name=systemd:/\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control", CONTROL),
        ("4:cpu,memory:/job:with:colons\n", "memory/job:with:colons/memory.oom_control", CONTROL),
    ],
)
def test_the_counter_is_found_and_its_rise_counted(tree, membership, file, text):
    root = tree(membership, {file: text.format(kills=2)})
    assert oom_kills(root=root) == 2
    watch = OomWatch(root)
    assert watch.kills() == 0
    tree(membership, {file: text.format(kills=3)})
    assert watch.kills() == 1


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("", {}),
        ("0::/\n", {}),
        ("not a cgroup line", {}),
        ("0::/job\n", {"job/memory.events": "oom 1\n"}),
        ("0::/job\n", {"job/memory.events": "oom_kill many\n"}),
        ("3:cpu:/job\n", {"cpu/job/memory.events": EVENTS.format(kills=1)}),
    ],
)
def test_where_nothing_counts_nothing_is_claimed(tree, membership, files):
    root = tree(membership, files)
    assert oom_kills(root=root) is None
    assert OomWatch(root).kills() == 0


def test_a_counter_that_comes_or_goes_is_no_kill(tree):
    root = tree("0::/job\n", {})
    watch = OomWatch(root)
    tree("0::/job\n", {"job/memory.events": EVENTS.format(kills=5)})
    assert watch.kills() == 0
    later = OomWatch(root)
    tree("0::/job\n", {"job/memory.events": EVENTS.format(kills=0)})
    assert later.kills() == 0, "another cgroup of that name"


def test_this_process_can_be_asked():
    found = oom_kills()
    assert found is None or found >= 0


def _rank(number, **more):
    fields = {"exit_code": None, "signal": signal.SIGKILL, "last_phase": Phase.SCORE}
    return RankOutcome(global_rank=number, **fields | more)


@pytest.mark.parametrize(("kills", "verdict"), [(1, Verdict.OUT_OF_MEMORY), (0, Verdict.CRASH)])
def test_a_kill_in_the_cgroup_tells_memory_from_a_crash(kills, verdict):
    ranks = [_rank(0, ended_by_harness=True), _rank(1), _rank(2, signal=signal.SIGSEGV)]
    marked = with_oom_kills(ranks, kills)
    assert [rank.oom_kills for rank in marked] == [0, kills, 0]
    assert first_fault(marked[:2]).verdict is verdict
    assert first_fault([marked[0], marked[2]]).verdict is Verdict.CRASH
