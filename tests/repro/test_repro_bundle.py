import hashlib
import io
import json
import tarfile
from dataclasses import replace

import pytest
from click.testing import CliRunner
from scripted_cases import SCORER_CASES, cases

from harness.record.codec import to_jsonable
from harness.record.environment import Environment, GpuFacts
from harness.record.evidence import ExceptionEvidence
from harness.record.files import write_record
from harness.record.phase import Phase
from harness.record.result import (
    Attempt,
    FaultReport,
    RankOutcome,
    ScenarioResult,
)
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.record.verdict import Outcome, Verdict
from harness.repro.bundle import Bundle, BundleError, archive_bytes, make_bundle, write_bundle
from harness.repro.redact import redactor_for
from harness.repro.source import Exported, SourceError, find_exported
from harness.scenario.writing import scenario_to_yaml
from launch.cli import cli

ENVIRONMENT = Environment(
    python="3.12.1",
    platform="Linux-6.1.0-secretsite-x86_64",
    host="gpu-node-17.cluster.example",
    num_cpus=8,
    torch="2.13.0",
    cudnn="9.20.0.48",
    megatron_core="0.19.2",
    megatron_path="/home/alice/src/Megatron-LM/megatron",
    cudnn_frontend="1.32.0",
    gpus=(GpuFacts(name="NVIDIA H200", uuid="GPU-1234abcd-55", capability="9.0", memory_bytes=1),),
    variables={"SLURM_JOB_USER": "alice", "NCCL_AUTH": "hunter2hunter2"},
)
SECRETS = (
    *("alice", "gpu-node-17", "secretsite", "hunter2", "10.20.30.40", "hf_abcdefghij"),
    *("/home", "/mnt/projects", "alice@example.com", "GPU-1234abcd"),
)


@pytest.fixture
def scenario(tmp_path):
    return cases(tmp_path / "cases", {"wrong-window": SCORER_CASES["wrong-window"]})["wrong-window"]


def crashed(scenario) -> ScenarioResult:
    text = (
        "boom at /mnt/projects/team/run.py on gpu-node-17 (10.20.30.40), "
        "HF_TOKEN=hf_abcdefghij, mail alice@example.com"
    )
    exception = ExceptionEvidence(
        type="RuntimeError",
        text=text,
        traceback='  File "/home/alice/venv/lib/python3.12/site-packages/megatron/core/x.py"',
        origin="build",
    )
    rank = RankOutcome(
        global_rank=0, host="gpu-node-17.cluster.example", pid=7, exit_code=1, exception=exception
    )
    stats = OverlapStats(rows=8, due=26, exact=13, missing=13)
    attempt = Attempt(
        number=1,
        verdict=Verdict.CRASH,
        ranks=(rank,),
        fault=FaultReport(verdict=Verdict.CRASH, global_rank=0, phase=Phase.SCORE, cause=text),
        selections=(
            SelectionEvidence(
                global_rank=0, cp_rank=1, microbatch=0, layer=1, seed=0, stage="final", topk=4,
                reference_dtype="fp32", total=stats,
            ),
        ),
    )  # fmt: skip
    return ScenarioResult(
        id=scenario.id,
        content_hash=scenario.content_hash,
        summary=scenario.summary,
        scenario=to_jsonable(scenario),
        attempts=(attempt,),
        outcome=Outcome.UNEXPECTED,
        expected="pass",
        rerun="dsa-harness run /home/alice/my.yaml",
    )


@pytest.fixture
def bundle(scenario):
    exported = Exported(scenario=scenario, result=crashed(scenario), environment=ENVIRONMENT)
    return make_bundle(exported, ENVIRONMENT)


def test_bundle_holds_everything_and_a_manifest(bundle):
    assert set(bundle.files) == {
        *("issue.md", "scenario.yaml", "environment.json", "evidence.json", "manifest.json"),
        "repro_case_wrong_window.py",
    }
    manifest = json.loads(bundle.files["manifest.json"])
    assert set(manifest["files"]) == set(bundle.files) - {"manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == hashlib.sha256(bundle.files[name].encode()).hexdigest()


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_says_who_or_where(bundle, secret):
    for name, text in bundle.files.items():
        assert secret not in text, name


def test_what_readers_need_is_left(bundle):
    text = bundle.files["issue.md"]
    for kept in (
        "9.20.0.48",
        "0.19.2",
        "NVIDIA H200 (9.0)",
        "boom at <path>/run.py",
        "| 1 | final",
    ):
        assert kept in text
    assert "<path>/megatron/core/x.py" in bundle.files["evidence.json"]
    assert text.startswith("# DSA indexer")
    for heading in ("What happens", "Expected", "Versions", "How to run", "Numbers", "Links"):
        assert f"## {heading}\n" in text


def test_words_of_the_scenario_are_redacted_and_its_numbers_are_not(scenario):
    told = replace(scenario, summary="From /mnt/projects/team/x by alice@example.com, 10.20.30.40.")
    files = make_bundle(Exported(scenario=told), ENVIRONMENT).files
    assert not any("/mnt/projects" in text or "alice" in text for text in files.values())
    assert f"content hash {scenario.content_hash}" in files["repro_case_wrong_window.py"]


@pytest.mark.parametrize(
    "text",
    [
        "megatron-core 0.19.2 on cuDNN 9.20",
        "https://github.com/NVIDIA/cudnn-frontend/pull/316",
        "tokens 16 of 32, author unknown",
        "num_tokens: 4096, max_tokens=131072",
        "tokenizer_type=HuggingFaceTokenizer",
        "ratio 3/4, a/b and plan packed_thd",
    ],
)
def test_harmless_text_stays(text):
    assert redactor_for().text(text) == text


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("password: hunter2hunter2", "hunter2"),
        ("curl -H 'Authorization: Bearer abcdefgh12345678'", "abcdefgh"),
        ("https://me:pw1234@host.example/x", "pw1234"),
        ('{"api_key": "0123456789abcdef"}', "0123456789"),
        ("ghp_0123456789abcdef", "ghp_0"),
        ("Authorization: Basic dXNlcjpwdw", "dXNlcjpwdw"),
        ("--wandb-api-key deadbeef01", "deadbeef01"),
        ("AWS_ACCESS_KEY_ID=0123456789", "0123456789"),
        ("https://me:p@ss/w0rd@host.example/x", "w0rd"),
        ("~/jobs/secret/file.py", "jobs/secret"),
        ("node-a failed, node-a again", "node-a"),
    ],
)
def test_secrets_go_by_form_and_by_value(text, gone):
    assert gone not in redactor_for(["node-a"]).text(text)


def test_archive_is_the_same_each_time(bundle, tmp_path):
    first, second = archive_bytes(bundle), archive_bytes(bundle)
    assert first == second
    out = write_bundle(bundle, tmp_path / "b.tar.gz")
    with tarfile.open(out) as archive:
        members = archive.getmembers()
    assert {member.name for member in members} == {f"{bundle.name}/{n}" for n in bundle.files}
    assert {(m.uid, m.gid, m.uname, m.mtime, m.mode) for m in members} == {(0, 0, "", 0, 0o644)}


def test_hostile_names_stay_inside(tmp_path):
    bundle = Bundle(name="../../up", files={"../../etc/passwd": "x", "/abs": "y", "ok.md": "z"})
    with tarfile.open(fileobj=io.BytesIO(archive_bytes(bundle))) as archive:
        names = archive.getnames()
    assert all(name.count("/") == 1 and ".." not in name.split("/") for name in names)
    out = write_bundle(bundle, tmp_path / "out")
    assert sorted(path.parent for path in out.rglob("*")) == [out] * 3
    assert (out / "ok.md").read_text() == "z"


def test_other_files_are_not_written_over(bundle, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BundleError, match="other files"):
        write_bundle(bundle, tmp_path)
    with pytest.raises(BundleError, match="found a file"):
        write_bundle(bundle, tmp_path / "mine")
    write_bundle(bundle, tmp_path / "new")
    write_bundle(bundle, tmp_path / "new")


def test_a_case_without_a_script_says_why(scenario):
    leaked = crashed(scenario)
    attempt = replace(leaked.attempts[0], verdict=Verdict.STATE_LEAK, fault=None)
    result = replace(leaked, attempts=(attempt,))
    made = make_bundle(Exported(scenario=scenario, result=result), ENVIRONMENT)
    assert not any(name.endswith(".py") for name in made.files)
    assert "state_leak" in made.why_no_script
    assert "no script for this case" in made.files["issue.md"]


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        ("auto", "torch, megatron-core, nvidia-cudnn-frontend (--real alone)"),
        ("hardware", "torch, megatron-core, nvidia-cudnn-frontend"),
    ],
)
def test_what_a_script_needs_is_said_in_the_same_words_everywhere(
    scenario, tmp_path, source, needs
):
    case = replace(scenario, kernels=replace(scenario.kernels, source=source))
    bundle = make_bundle(Exported(scenario=case), ENVIRONMENT)
    assert f"It needs {needs} and nothing else:" in bundle.files["issue.md"]
    (script,) = (text for name, text in bundle.files.items() if name.endswith(".py"))
    assert f"Needs: {needs}. Nothing else is imported." in " ".join(script.split())
    path, out = tmp_path / "case.yaml", tmp_path / "repro.py"
    path.write_text(scenario_to_yaml(case))
    done = CliRunner().invoke(cli, ["export", str(path), "--to", "script", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f" lines, needs {needs}\n" in done.output


def test_results_and_runs_are_sources(scenario, tmp_path):
    write_record(tmp_path / "run" / "results" / "a.json", crashed(scenario))
    for path in (tmp_path / "run", tmp_path / "run" / "results" / "a.json"):
        found = find_exported(path)
        assert found.scenario == scenario
        assert found.result.verdict is Verdict.CRASH
    with pytest.raises(SourceError, match="no scenario 'other'"):
        find_exported(tmp_path / "run", scenario_id="other")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SourceError, match=r"bad\.json"):
        find_exported(tmp_path / "bad.json")
    with pytest.raises(SourceError, match="nothing"):
        find_exported(tmp_path / "nothing.yaml")
