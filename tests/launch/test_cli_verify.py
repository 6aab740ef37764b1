import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harness.record.verdict import ExitCode
from harness.scenario.files import PROJECT_ROOT
from launch import cli

GOOD = """\
id: case/good
summary: A good one.
model: small
parallel: {context_parallel_size: 4}
microbatches: [{sequences: [128, 64]}]
"""
BAD = GOOD.replace("good", "bad").replace("model: small", "model: smal").replace("64]", "64.5]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def run(*arguments: str, env: dict[str, str] | None = None):
    return CliRunner().invoke(
        cli.cli, list(arguments), env=env, auto_envvar_prefix="DSA_HARNESS", prog_name="dsa-harness"
    )


def test_a_good_file_is_one_line_and_code_0(folder):
    result = run("verify", "good.yaml")
    assert result.exit_code == ExitCode.OK
    assert result.output == "1 file, 1 scenario, no errors\n"


def test_a_bad_file_is_code_2_with_positions(folder):
    (folder / "bad.yaml").write_text(BAD)
    result = run("verify", ".")
    assert result.exit_code == ExitCode.USAGE
    assert result.output.splitlines() == [
        "bad.yaml:3:8: model: no model named 'smal' in models/; did you mean small?; there are: "
        "deepseek_v3_2, glm5_2, small",
        "bad.yaml:5:34: microbatches[0].sequences[1]: expected a whole number, found 64.5",
        "2 files, 1 scenario, 2 errors",
    ]


def test_github_format_escapes(folder):
    (folder / "a,b%.yaml").write_text(BAD)
    lines = run("verify", "--format", "github", "a,b%.yaml").output.splitlines()
    assert lines[0].startswith("::error file=a%2Cb%25.yaml,line=3,col=8::model: no model named")
    missing = run("verify", "--format", "github", "none.yaml").output
    assert missing.startswith("::error file=none.yaml::no such file or folder")


def test_json_format_is_one_document(folder):
    (folder / "bad.yaml").write_text(BAD)
    result = run("verify", "--format", "json", "--explain", ".")
    assert result.exit_code == ExitCode.USAGE
    data = json.loads(result.output)
    assert (data["ok"], data["num_files"], len(data["problems"])) == (False, 2, 2)
    assert data["problems"][0] | {"message": ""} == {
        "file": "bad.yaml",
        "line": 3,
        "column": 8,
        "message": "",
        "severity": "error",
    }
    (scenario,) = data["scenarios"]
    assert (scenario["id"], scenario["file"], scenario["line"]) == ("case/good", "good.yaml", 1)
    plans = scenario["verification"]["microbatches"]
    assert [plan["plan"] for plan in plans] == ["packed_thd"]
    assert len(plans[0]["ranks"]) == 4


def test_explain_shows_ranks_plan_and_memory(folder):
    text = run("verify", "--explain", "good.yaml").output
    assert "level attention, 4 ranks (cp 4 x tp 1), at least " in text
    assert "microbatch 0: cp 4, 192 keys, packed_thd (2 packed sequences: scored from" in text
    assert "cp_rank 3: 48 rows, 48 valid, 4 segments, largest limit 80" in text


def test_explain_joins_ranks_that_are_alike(folder):
    (folder / "flat.yaml").write_text(
        GOOD.replace("[128, 64]", "[0], tail_padding: 8").replace("good", "flat")
    )
    text = run("verify", "--explain", "flat.yaml").output
    assert "cp_rank 0 to 3: 2 rows, 0 valid, 1 segment, largest limit 0" in text


def test_explain_tells_what_the_release_does_instead(folder):
    (folder / "one.yaml").write_text(GOOD.replace("parallel: {context_parallel_size: 4}\n", ""))
    text = run("verify", "--explain", "one.yaml").output
    assert "megatron-core 0.19.2 takes unfused_bounds (packed at cp_size 1" in text


def test_warnings_are_counted_and_leave_code_0(folder):
    (folder / "odd.yaml").write_text(GOOD + "kernels: {score_chunk_bytes: 8}\n")
    result = run("verify", "odd.yaml")
    assert result.exit_code == ExitCode.OK
    assert "odd.yaml:6:30: warning: kernels.score_chunk_bytes: " in result.output
    assert result.output.endswith("1 file, 1 scenario, no errors, 1 warning\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify",), "Missing argument 'PATH...'"),
        (("verify", "--format", "xml", "good.yaml"), "'xml' is not one of"),
        (("verify", "--explian", "good.yaml"), "Did you mean '--explain'?"),
        (("verfy", "good.yaml"), "No such command 'verfy'"),
    ],
)
def test_wrong_usage_is_code_2(folder, arguments, words):
    result = run(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.output


def test_options_come_from_the_environment_too(folder):
    result = run("verify", "good.yaml", env={"DSA_HARNESS_VERIFY_FORMAT": "json"})
    assert json.loads(result.output)["ok"] is True


def test_dashes_and_underscores_are_alike(folder):
    import click

    @click.command()
    @click.option("--nproc-per-node", type=int)
    def command(nproc_per_node: int) -> None:
        click.echo(nproc_per_node)

    group = click.Group("g", {"run-it": command}, context_settings=cli.CONTEXT_SETTINGS)
    for spelling in ("--nproc-per-node", "--nproc_per_node"):
        for name in ("run-it", "run_it"):
            result = CliRunner().invoke(group, [name, spelling, "4"])
            assert result.output == "4\n", result.output


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_rows_of_the_table_lead_to_commands(name):
    command = cli.cli.get_command(None, name)
    assert command.name == name
    result = run(name, "--help")
    assert result.exit_code == ExitCode.OK
    assert result.output.startswith(f"Usage: dsa-harness {name} ")


def test_an_error_of_the_harness_is_code_3(folder, monkeypatch, capsys):
    def fail(*_args, **_kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr("harness.scenario.loader.load", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", "good.yaml"])
    assert stop.value.code == ExitCode.HARNESS_ERROR
    captured = capsys.readouterr()
    assert "RuntimeError: planted" in captured.err
    assert "error in the harness itself" in captured.err


def test_an_interrupt_is_code_130(folder, monkeypatch, capsys):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.scenario.loader.load", interrupt)
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", "good.yaml"])
    assert stop.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.strip() == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "code"), [(["verify", "good.yaml"], 0), (["verify", "no"], 2)]
)
def test_main_exits_with_the_code_of_the_command(folder, arguments, code):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == code


def test_a_reader_that_goes_away_is_no_error():
    """The reading end of standard output is closed before the list is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", "from launch.cli import main; main()", "list", "scenarios"],
        cwd=PROJECT_ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_version():
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
