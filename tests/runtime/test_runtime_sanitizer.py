"""compute-sanitizer: commands, its XML in every state, and what findings make of an attempt."""

import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from harness.record.codec import dumps, loads
from harness.record.device_fault import SanitizerFinding
from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.record.result import Attempt, FaultReport
from harness.record.verdict import Verdict
from harness.runtime import sanitizer_xml
from harness.runtime.sanitizer import (
    TOOLS,
    SanitizerError,
    Settings,
    describe,
    launch_words,
    main,
    rank_words,
    read_reports,
    sanitizer_environment,
    with_findings,
    wrapped_words,
)
from harness.runtime.sanitizer_xml import read_sanitizer_xml

ROOT = Path(__file__).resolve().parents[2]


def xyz(name, values):
    inside = "".join(f"<{axis}>{value}</{axis}>" for axis, value in zip("xyz", values, strict=True))
    return f"<{name}>{inside}</{name}>"


def access(kernel="indexer_top_k&lt;2048&gt;(int*)", address="0x7f0000000400", **leave_out):
    """One record of an access out of bounds, as the tool writes it."""
    where = "" if "where" in leave_out else f"<where><func>{kernel}</func><path>topk.cu</path>"
    where += "" if "where" in leave_out else "<line>88</line><pc>0xb0</pc></where>"
    return (
        "<record><kind>Precise</kind><level>Error</level><who>"
        + xyz("threadIdx", (5, 0, 0))
        + xyz("blockIdx", (1, 2, 3))
        + "</who><what><text>Invalid __global__ write of size 4 bytes. Address is out of bounds "
        "and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 1,024 bytes</text>"
        f"<space>__global__</space><direction>Write</direction><accessSize>4</accessSize>"
        f"<address>{address}</address></what>{where}"
        "<hostStack><frame><func>cuLaunchKernel</func><module>libcuda.so</module></frame>"
        "<frame><func>launch</func></frame></hostStack></record>"
    )


API = (
    "<record><kind>Api</kind><level>Error</level><what><text>Program hit error 2</text>"
    "<api>cudaMalloc</api><result>2</result></what></record>"
)
RACE = (
    "<record><kind>Race condition</kind><level>{level}</level><what><text>Race reported</text>"
    "</what><write><frame><func>kernel_a</func><path>a.cu</path><line>4</line></frame></write>"
    "</record>"
)


@pytest.fixture
def read(tmp_path):
    def read(*records, text=None, tool="memcheck"):
        path = tmp_path / "rank3.memcheck.xml"
        if text is None:
            inside = "".join(records)
            text = f'<?xml version="1.0" encoding="utf-8"?>\n<ComputeSanitizerOutput>{inside}'
            text += "</ComputeSanitizerOutput>\n"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_sanitizer_xml(path, tool=tool, global_rank=3)

    return read


def test_an_access_is_read_with_all_it_says(read):
    report = read(access())
    assert report.problem == ""
    (found,) = report.findings
    assert found == SanitizerFinding(
        tool="memcheck",
        global_rank=3,
        kind="Precise",
        level="Error",
        text="Invalid __global__ write of size 4 bytes. Address is out of bounds and is 1 bytes "
        "after the nearest allocation at 0x7f0000000000 of size 1,024 bytes",
        space="global",
        direction="write",
        size=4,
        address="0x7f0000000400",
        allocation="is 1 bytes after the nearest allocation at 0x7f0000000000 of size 1,024 bytes",
        kernel="indexer_top_k<2048>(int*)",
        source="topk.cu:88",
        thread=(5, 0, 0),
        block=(1, 2, 3),
        stack=("cuLaunchKernel", "launch"),
    )
    assert found.is_fault
    assert loads(SanitizerFinding, dumps(found)) == found


def test_a_clean_file_has_no_findings(read):
    assert read() == sanitizer_xml.SanitizerReport(findings=())


def test_api_errors_and_warnings_are_no_faults_of_a_kernel(read):
    races = [RACE.format(level=level) for level in ("Warning", "Error")]
    report = read(API, *races, tool="racecheck")
    assert [finding.is_fault for finding in report.findings] == [False, False, True]
    assert report.findings[1].kernel == "kernel_a"
    assert report.findings[0].kernel == "", "the host's stack is not a kernel's place"


@pytest.mark.parametrize("cut", [1, 20, 150, 400])
def test_a_cut_file_gives_its_whole_records(read, cut):
    inside = access() + access(kernel="second")
    text = f"<ComputeSanitizerOutput>{inside}</ComputeSanitizerOutput>"
    report = read(text=text[:-cut])
    assert len(report.findings) == (2 if cut <= 20 else 1)
    assert report.problem.startswith("cut or broken at line 1")


def test_an_empty_and_a_missing_file(read, tmp_path):
    assert read(text="").problem.startswith("cut or broken")
    missing = read_sanitizer_xml(tmp_path / "none.xml", tool="memcheck")
    assert missing.findings == () and "no such file" in missing.problem
    assert "cannot be read" in read_sanitizer_xml(tmp_path, tool="memcheck").problem


def test_entities_are_neither_fetched_nor_blown_up(read, tmp_path):
    (tmp_path / "secret").write_text("secret")
    for declaration in (
        f'<!ENTITY x SYSTEM "file://{tmp_path}/secret">',
        '<!ENTITY a "aaaaaaaaaa"><!ENTITY x "&a;&a;&a;&a;&a;&a;&a;&a;">',
        '<!ENTITY % p SYSTEM "http://127.0.0.1:9/x.dtd"> %p;',
    ):
        head = f"<!DOCTYPE ComputeSanitizerOutput [{declaration}]>"
        body = "<record><what><text>&x;</text></what></record>"
        report = read(text=f"{head}<ComputeSanitizerOutput>{body}</ComputeSanitizerOutput>")
        assert report.findings == ()
        assert "document type" in report.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<other/>", "expected a document ComputeSanitizerOutput, found 'other'"),
        ("<ComputeSanitizerOutput>" + "<a>" * 100, "nested deeper"),
        (b"<ComputeSanitizerOutput>\xff\xfe", "cut or broken"),
        ("no xml at all", "cut or broken"),
        ("<ComputeSanitizerOutput>&undefined;</ComputeSanitizerOutput>", "cut or broken"),
    ],
)
def test_other_files_are_told_apart(read, text, problem):
    report = read(text=text)
    assert report.findings == () and problem in report.problem


def test_sizes_and_counts_are_bounded(read, monkeypatch):
    monkeypatch.setattr(sanitizer_xml, "MOST_RECORDS", 3)
    report = read(*[access()] * 5)
    assert len(report.findings) == 3 and "more than 3 records" in report.problem
    long = "x" * 100_000
    (found,) = read(f"<record><what><text>{long}</text></what></record>").findings
    assert len(found.text) < 10_000
    monkeypatch.setattr(sanitizer_xml, "LARGEST_FILE", sanitizer_xml._CHUNK)
    assert "longer than" in read(*[access()] * 2, f"<record>{long}</record>").problem


def test_records_with_parts_missing_or_wrong_are_kept(read):
    wrong = "<record><kind>Precise</kind><what><size>many</size></what><who><threadIdx><x>1</x>"
    report = read(access(where=None), f"{wrong}</threadIdx></who><news>1</news></record>")
    first, second = report.findings
    assert (first.kernel, first.source, first.size) == ("", "", 4)
    assert (second.size, second.thread, second.is_fault) == (None, (), True)


SETTINGS = Settings(tool="memcheck", folder="/out", ranks=(1,))


@pytest.mark.parametrize("tool", TOOLS)
def test_the_command_of_a_wrapped_rank(tool):
    settings = Settings(tool=tool, folder="/out")
    words = wrapped_words("cs", settings, 5, 16, ["python", "launch/run.py"])
    assert words[0] == "cs" and words[-2:] == ["python", "launch/run.py"]
    options = dict(pairwise(words))
    assert options["--tool"] == tool
    assert options["--save"] == f"/out/rank5.{tool}.xml" and "--xml" in words
    assert options["--error-exitcode"] == "99"
    assert options["--target-processes"] == "application-only"
    assert options["--kernel-name-exclude"] == "kernel_substring=nccl"
    assert options["--launch-timeout"] == "0"
    assert options["--max-connections"] == "64"
    assert "--generate-coredump" not in words


def test_only_the_ranks_asked_for_are_wrapped():
    assert wrapped_words("cs", SETTINGS, 0, 2, ["x"]) == ["x"]
    assert wrapped_words("cs", SETTINGS, 1, 2, ["x"])[0] == "cs"
    dumping = Settings(tool="memcheck", folder="/out", core_dump=True)
    assert "--generate-coredump" in wrapped_words("cs", dumping, 0, 2, ["x"])


def test_torch_s_cache_is_switched_off_unless_the_user_says_otherwise():
    name = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    assert sanitizer_environment(SETTINGS, {}) == {name: "1"}
    assert sanitizer_environment(SETTINGS, {name: "0"}) == {}
    assert sanitizer_environment(Settings(tool="racecheck", folder="/out"), {}) == {}


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("torchrun --standalone --nproc-per-node 2 launch/run.py", 5),
        ("srun --ntasks=2 python launch/run.py", 2),
    ],
)
def test_the_command_of_a_run_becomes_one_under_the_tool(words, start):
    rest = ["--scenario", "a.yaml", "--isolation", "group", "-k", "x"]
    found = launch_words(SETTINGS, [*words.split(), *rest])
    assert ("--no-python" in found[:start]) is (found[0] == "torchrun")
    assert found[start : start + 3] == [sys.executable, "-m", "harness.runtime.sanitizer"]
    place = found.index("--")
    run = [sys.executable, "launch/run.py", "--scenario", "a.yaml", "-k", "x"]
    assert found[place + 1 :] == [*run, "--isolation", "none"]
    with pytest.raises(SanitizerError, match=r"starts launch/run\.py"):
        launch_words(SETTINGS, ["torchrun", "train.py"])


FAKE = """#!{python}
import os, pathlib, subprocess, sys
words = sys.argv[1:]
file = pathlib.Path(words[words.index("--save") + 1])
command = words[words.index("--max-connections") + 2:]
done = subprocess.run(command, env=os.environ)
file.write_text({xml!r})
sys.exit(99)
"""


@pytest.fixture
def fake_tool(tmp_path, monkeypatch):
    """A stand-in that runs the command, saves a finding and exits as the tool does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "compute-sanitizer"
    xml = f"<ComputeSanitizerOutput>{access()}</ComputeSanitizerOutput>"
    script.write_text(FAKE.format(python=sys.executable, xml=xml))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(("rank", "code"), [(0, 0), (1, 99)])
def test_each_rank_becomes_its_own_command(fake_tool, tmp_path, rank, code):
    settings = Settings(tool="memcheck", folder=str(tmp_path / "out"), ranks=(1,))
    say = "import os; print(os.environ.get('PYTORCH_NO_CUDA_MEMORY_CACHING'))"
    words = rank_words(settings, [sys.executable, "-c", say])
    env = {**os.environ, "RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    env.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + shlex.join(words)
    assert done.stdout.strip() == ("1" if rank == 1 else "None")
    findings, notes = read_reports(settings, 2)
    assert [finding.global_rank for finding in findings] == ([1] if rank == 1 else [])
    assert [note.topic for note in notes] == ([] if rank == 1 else ["sanitizer"])


def test_a_missing_tool_and_wrong_ranks_are_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("harness.runtime.sanitizer.find_sanitizer", lambda: None)
    words = ["--tool", "memcheck", "--folder", str(tmp_path)]
    with pytest.raises(SanitizerError, match="install the extra 'debug' or the CUDA toolkit"):
        main([*words, "--", "true"], {"RANK": "0"})
    with pytest.raises(SystemExit):
        main([*words, "--ranks", "one", "--", "true"], {})
    assert "expected numbers such as 0,3, found 'one'" in capsys.readouterr().err


PATH = PathEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    layer=1,
    seed=0,
    backend="cudnn",
    plan="packed_thd",
    plan_source="build",
    reason="",
    scorer="thd",
    fused=True,
)
PASSED = Attempt(number=1, verdict=Verdict.PASS, paths=(PATH,))
HUNG = Attempt(
    number=1,
    verdict=Verdict.HANG,
    fault=FaultReport(
        verdict=Verdict.HANG, global_rank=0, phase=Phase.SCORE, cause="rank 0 slept", victims=(3,)
    ),
)


def test_a_finding_turns_a_pass_into_a_memory_fault(read):
    findings = read(access()).findings
    attempt = with_findings(PASSED, findings)
    assert (attempt.verdict, attempt.secondary) == (Verdict.MEMORY_FAULT, ())
    assert attempt.fault.global_rank == 3
    assert attempt.fault.cause == f"rank 3: {describe(findings[0])}"
    assert "in indexer_top_k<2048>(int*), at topk.cu:88" in attempt.fault.cause
    assert attempt.sanitizer == findings


def test_without_a_fault_the_verdict_stays(read):
    assert with_findings(PASSED, ()) == PASSED
    told = with_findings(PASSED, read(API, RACE.format(level="Warning")).findings)
    assert told.verdict is Verdict.PASS and len(told.sanitizer) == 2


def test_a_fault_beside_another_one_leads_and_keeps_it(read):
    attempt = with_findings(HUNG, read(access()).findings)
    assert (attempt.verdict, attempt.secondary) == (Verdict.MEMORY_FAULT, (Verdict.HANG,))
    assert attempt.fault.cause.endswith("; rank 0 slept")
    assert (attempt.fault.phase, attempt.fault.victims) == (Phase.SCORE, ())


def test_what_never_ran_or_was_spoilt_keeps_its_verdict(read):
    findings = read(access()).findings
    not_run = Attempt(number=1, verdict=Verdict.NOT_RUN, missing_capability="a GPU")
    assert with_findings(not_run, findings).verdict is Verdict.NOT_RUN
    spoilt = Attempt(
        number=1,
        verdict=Verdict.INFRASTRUCTURE,
        fault=FaultReport(
            verdict=Verdict.INFRASTRUCTURE, global_rank=None, phase=None, cause="no network"
        ),
    )
    told = with_findings(spoilt, findings)
    assert (told.verdict, told.secondary) == (Verdict.INFRASTRUCTURE, (Verdict.MEMORY_FAULT,))
