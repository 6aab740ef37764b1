import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.kernels.releases import RELEASES
from harness.record.result import Attempt, Proof
from harness.record.verdict import ExitCode, Verdict
from harness.repro.affected import FACTS, HARDWARE, MODEL, Image, findings, look_at
from harness.repro.measured import short_scenarios, with_measurements
from harness.repro.version_faults import FAULTS
from launch.affected import exit_code
from launch.cli import cli

ROOT = Path(__file__).parents[2]
RELEASED = {
    "passes_causal_offsets": False,
    "says_global_ids": False,
    "has_scoring_plan": False,
    "has_layout_memo": False,
    "has_dynamic_cp": False,
    "warns_packed_cp_graphs": False,
}
MERGED = dict.fromkeys(RELEASED, True)


def image(release="1.32.0", arch="sm100", build=RELEASED, **changes) -> Image:
    known = {"megatron_core": "0.19.2", "cudnn_frontend": release, "build": build}
    return Image(**(known | {"arches": (arch,)} | changes))


def answers(asked: Image) -> dict[str, str]:
    return {item.name: item.affected for item in findings(asked)}


@pytest.mark.parametrize(
    ("release", "build", "due"),
    [
        ("1.24.0", RELEASED, "no"),
        ("1.25.0", RELEASED, "no"),
        ("1.26.0", RELEASED, "yes"),
        ("1.32.0", RELEASED, "yes"),
        ("1.32.0", MERGED, "no"),
    ],
)
def test_wrong_keys(release, build, due):
    found = {item.name: item for item in findings(image(release, build=build))}
    item = found["wrong-keys-on-cp-chunks"]
    assert (item.affected, item.basis) == (due, FACTS)
    assert ("causal_offsets" in item.change) is (due == "yes")


def test_facts_go_before_versions():
    back_ported = image("1.25.0", accepts_offsets=True)
    assert answers(back_ported)["wrong-keys-on-cp-chunks"] == "yes"
    patched = image("1.32.0", accepts_offsets=False)
    assert answers(patched)["wrong-keys-on-cp-chunks"] == "no"


@pytest.mark.parametrize(
    ("name", "release", "arch", "due"),
    [
        ("illegal-address-of-long-packs", "1.26.0", "sm90", "yes"),
        ("illegal-address-of-long-packs", "1.27.0", "sm90", "no"),
        ("scores-below-fp16-minimum", "1.25.0", "sm100", "yes"),
        ("scores-below-fp16-minimum", "1.27.0", "sm100", "no"),
        ("int32-scratch", "1.25.0", "sm100", "no"),
        ("micro-batch-ids", "1.25.0", "sm100", "no"),
        ("micro-batch-ids", "1.26.0", "sm100", "yes"),
        ("block-counts", "1.30.0", "sm100", "yes"),
        ("block-counts", "1.30.0", "sm90", "no"),
        ("block-counts", "1.31.0", "sm100", "no"),
        ("sparse-loss-compile", "1.25.0", "sm100", "yes"),
        ("sparse-loss-compile", "1.25.0", "sm90", "no"),
        ("odd-topk", "1.26.0", "sm90", "yes"),
        ("old-key-gradient", "1.27.0", "sm100", "no"),
        ("no-kernels", "1.24.0", "sm90", "yes"),
        ("no-kernels", "1.24.0", "sm100", "no"),
    ],
)
def test_releases(name, release, arch, due):
    assert answers(image(release, arch))[name] == due


def test_what_the_caller_guards_against_is_told():
    found = {item.name: item for item in findings(image("1.25.0"))}
    assert "caller cuts rows" in found["int32-scratch"].why
    assert "hands over no buffer" in found["old-key-gradient"].why


def test_without_a_known_gpu_the_answer_may_hang_on_it():
    both = image("1.25.0", arches=("sm90", "sm100"))
    assert answers(both)["sparse-loss-compile"] == "unknown"
    assert answers(both)["scores-below-fp16-minimum"] == "yes"
    assert answers(both)["wrong-keys-on-cp-chunks"] == "no"


def test_releases_behind_the_table_are_unconfirmed():
    found = {item.name: item for item in findings(image("1.40.0"))}
    assert "unconfirmed" in found["odd-topk"].why
    assert found["odd-topk"].affected == "unknown"
    assert found["wrong-keys-on-cp-chunks"].affected == "yes"


def test_without_parts_nothing_is_claimed():
    none = answers(image(None))
    assert none["wrong-keys-on-cp-chunks"] == "unknown"
    old = answers(image("1.20.0"))
    assert old["wrong-keys-on-cp-chunks"] == "no"
    no_build = image(megatron_core=None, no_build="no DSA there", build={})
    found = {item.name: item for item in findings(no_build)}
    assert found["dynamic-cp"].affected == "unknown"
    assert found["dynamic-cp"].why == "no DSA there"


def test_every_release_and_build_is_answered():
    for release in RELEASES:
        for arch in ("sm90", "sm100"):
            for build in (RELEASED, MERGED):
                assert set(answers(image(release, arch, build)).values()) <= {"yes", "no"}


def test_scenarios_links_and_names_are_there():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert (ROOT / fault.scenario).exists(), fault.name
        assert fault.link.startswith("https://github.com/")


def test_exit_codes():
    def code(*given):
        rows = findings(image())
        made = tuple(
            replace(row, affected=affected, kind=kind)
            for row, (affected, kind) in zip(rows, given, strict=False)
        )
        return exit_code(made)

    assert code(("no", "fault"), ("yes", "limit")) is ExitCode.OK
    assert code(("unknown", "fault"), ("no", "fault")) is ExitCode.NOTHING_RAN
    assert code(("unknown", "fault"), ("yes", "fault")) is ExitCode.CHECK_FAILED


class _Result:
    def __init__(self, verdict, where):
        self.verdict = verdict
        self.last = Attempt(
            number=1,
            verdict=Verdict.NOT_RUN,
            missing_capability="usable GPU",
            proof=Proof(kernels={"indexer_forward": where}),
        )


@pytest.mark.parametrize(
    ("verdict", "where", "affected", "basis"),
    [
        (Verdict.WRONG_SELECTION, "hardware", "yes", HARDWARE),
        (Verdict.PASS, "modelled 1.25.0 sm100", "no", MODEL),
        (Verdict.OUT_OF_BOUNDS, "modelled 1.25.0 sm100", "yes", MODEL),
        (Verdict.NOT_RUN, "none", "no", FACTS),
    ],
)
def test_measurements_replace_predictions(verdict, where, affected, basis):
    asked = image("1.25.0")
    ran = []

    def evaluate(scenario):
        ran.append(scenario)
        return _Result(verdict, where)

    found = with_measurements(findings(asked), asked, evaluate, root=ROOT)
    item = next(item for item in found if item.name == "wrong-keys-on-cp-chunks")
    assert (item.affected, item.basis) == (affected, basis)
    assert {scenario.level for scenario in ran} == {"scorer"}
    assert not any(scenario.known for scenario in ran)


def test_a_run_that_shows_nothing_clears_no_other_path():
    asked = image("1.25.0")
    found = with_measurements(
        findings(asked), asked, lambda s: _Result(Verdict.PASS, "modelled"), root=ROOT
    )
    item = next(item for item in found if item.name == "illegal-address-of-long-packs")
    assert item.affected == "yes"
    assert "does not show it" in item.why


def test_short_scenarios_are_of_the_release_that_is_asked_about():
    fault = next(fault for fault in FAULTS if fault.shown_by)
    made = list(short_scenarios(fault, image("1.24.0", arches=("sm90", "sm100")), ROOT))
    assert [s.kernels.modelled.arch for s in made] == ["sm100"], "no sm90 kernels there"
    assert made[0].kernels.modelled.cudnn_frontend == "1.24.0"


def test_installed_facts_are_read_without_importing():
    asked = look_at()
    assert asked.accepts_offsets is True
    assert asked.build["passes_causal_offsets"] is False
    assert look_at(cudnn_frontend="1.25.0").accepts_offsets is None


@pytest.mark.parametrize(
    "option",
    [
        *("--cudnn-frontend=", "--cudnn-frontend=abc", "--cudnn-frontend=1.31"),
        *("--megatron=", "--megatron=/absent/checkout", "--only=", "--arch="),
    ],
)
def test_values_that_are_none_are_refused(option):
    result = CliRunner().invoke(cli, ["affected", option])
    assert result.exit_code == ExitCode.USAGE
    assert option.partition("=")[0] in result.output
    assert "AFFECTED" not in result.output


@pytest.mark.parametrize("version", ["1.32.0", "1.33.0rc1", "1.31.0.post1+cu13", "2.0.0.dev3"])
def test_releases_that_are_not_in_the_table_may_be_asked_about(version):
    result = CliRunner().invoke(cli, ["affected", "--cudnn-frontend", version, "--json"])
    assert json.loads(result.stdout)["image"]["cudnn_frontend"] == version


def test_command():
    def run(*arguments):
        return CliRunner().invoke(cli, ["affected", *arguments], standalone_mode=False)

    result = run("--json", "--cudnn-frontend", "1.32.0", "--arch", "sm100")
    assert result.return_value == ExitCode.CHECK_FAILED
    told = json.loads(result.stdout)
    assert told["exit_code"] == 1
    assert {item["basis"] for item in told["findings"]} <= {
        "predicted from facts",
        "predicted from versions",
    }
    result = run("--only", "scores-below-fp16-minimum", "--cudnn-frontend", "1.32.0")
    assert result.return_value == ExitCode.OK
    assert "nothing here was measured on a GPU" in result.stdout
    result = run("--only", "block-counts", "--cudnn-frontend", "1.30.0")
    assert result.return_value == ExitCode.NOTHING_RAN
    assert "wrong-keys-on-cp-chunks" in str(run("--only", "nonsense").exception)
