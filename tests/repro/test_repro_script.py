import ast
import json
import subprocess
import sys

import pytest
from scripted_cases import KERNEL_CASES, SCORER_CASES, cases

from harness.record.verdict import Verdict
from harness.repro.refusals import ExportRefusedError, check_verdict
from harness.repro.script import script_name, script_text
from harness.scenario.loader import load

ALLOWED = {*sys.stdlib_module_names, "torch", "megatron", "cudnn"}

RUNNER = """\
import contextlib, io, json, runpy, sys, traceback
told = {}
for path in sys.argv[1:]:
    sys.argv, out, code = [path], io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except Exception:
        out.write(traceback.format_exc())
    told[path] = [code, out.getvalue()]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    return cases(tmp_path_factory.mktemp("cases"), SCORER_CASES | KERNEL_CASES)


@pytest.fixture(scope="module")
def scripts(scenarios, tmp_path_factory):
    """Name to the file of its script, all in one folder."""
    folder = tmp_path_factory.mktemp("scripts")
    made = {}
    for name, scenario in scenarios.items():
        made[name] = folder / script_name(scenario)
        made[name].write_text(script_text(scenario))
    return made


@pytest.fixture(scope="module")
def told(scripts):
    """What the scripts say, run outside the project by an interpreter without its paths."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER, *map(str, scripts.values())],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[str(path)] for name, path in scripts.items()}


@pytest.fixture(scope="module")
def due(scenarios):
    from harness.runtime.warm import WarmRanks

    with WarmRanks(1) as ranks:
        return {name: ranks.evaluate(item).verdict for name, item in scenarios.items()}


@pytest.mark.ranks
@pytest.mark.timeout(900)  # the first one waits for all scripts and all scenarios
@pytest.mark.parametrize("name", [*SCORER_CASES, *KERNEL_CASES])
def test_script_and_harness_agree(name, told, due, scenarios):
    code, output = told[name]
    last = output.strip().splitlines()[-1]
    assert last.startswith(f"verdict: {due[name]} "), output[-2000:]
    assert code == int(due[name] is not scenarios[name].expect.verdict), output[-2000:]


@pytest.mark.ranks
def test_the_cases_hold_faults_and_healthy_twins(due):
    kinds = set(due.values())
    assert {
        Verdict.PASS,
        Verdict.WRONG_SELECTION,
        Verdict.MEMORY_FAULT,
        Verdict.WRONG_GRADIENT,
        Verdict.WRONG_VALUE,
        Verdict.HANG,
        Verdict.REFUSED,
        Verdict.WRONG_PATH,
    } <= kinds
    assert sum(verdict is Verdict.PASS for verdict in due.values()) >= 6


ATTENTION_CASES = {
    "attended": {"level": "attention"},
    "attended-right": {
        "level": "attention",
        "release": "1.25.0",
        "microbatches": "[{sequences: [32, 13]}]",
    },
    "attended-unfused": {"level": "attention", "backend": "none"},
}


@pytest.mark.ranks
@pytest.mark.slow
def test_attention_scripts_start_their_own_ranks(tmp_path):
    from harness.runtime.warm import WarmRanks

    made = cases(tmp_path / "cases", ATTENTION_CASES)
    with WarmRanks(2) as ranks:
        wanted = {name: ranks.evaluate(item).verdict for name, item in made.items()}
    assert set(wanted.values()) == {Verdict.PASS, Verdict.WRONG_SELECTION}
    for name, scenario in made.items():
        path = tmp_path / script_name(scenario)
        path.write_text(script_text(scenario))
        done = subprocess.run(
            [sys.executable, "-I", str(path)], cwd="/", capture_output=True, text=True, timeout=120
        )
        assert f"verdict: {wanted[name]} " in done.stdout, done.stdout + done.stderr
        assert done.returncode == int(wanted[name] is not Verdict.PASS)


def test_scripts_import_only_what_they_name(scripts):
    for path in scripts.values():
        tree = ast.parse(path.read_text())
        found = {
            (node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert found <= ALLOWED, path.name
        kernel = "kernel wrapper" in ast.get_docstring(tree)
        assert ("megatron" in found) is not kernel


def test_scripts_are_clean(scripts, tmp_path):
    made = cases(tmp_path / "cases", ATTENTION_CASES)
    more = []
    for scenario in made.values():
        more.append(tmp_path / script_name(scenario))
        more[-1].write_text(script_text(scenario))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    command += ["--select", "E,F,W,I", "--line-length", "100", "--output-format", "concise"]
    done = subprocess.run(
        [*command, *map(str, [*scripts.values(), *more])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for path in (*scripts.values(), *more):
        compile(path.read_text(), path.name, "exec")


def test_scripts_are_short_and_say_what_is_modelled(scripts):
    text = scripts["wrong-window"].read_text()
    assert len(text.splitlines()) < 320
    assert "MODELLED nvidia-cudnn-frontend 1.32.0 on sm100" in text[:1000]
    assert "phantom" not in text, "lines of a defect that the release does not have"
    assert "phantom_lanes" in scripts["phantom-lanes"].read_text()
    assert "MODELLED" not in scripts["other-keys"].read_text()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("level: model", "level: model"),
        ("kernels: {dsa_kernel_backend: tilelang}", "tilelang"),
        ("training: {backward: true}", "training"),
        ("compare: {launches: [again]}", "compare"),
        ("perturb: {fact: device}\nkernels: {dsa_kernel_backend: cudnn}", "perturb"),
        ("graph: {cuda_graph_impl: local}", "graph"),
        ("parallel: {tensor_model_parallel_size: 2}", "tensor_model_parallel_size"),
    ],
)
def test_what_no_script_holds_is_refused_with_a_way_out(tmp_path, text, key):
    path = tmp_path / "case.yaml"
    path.write_text(
        f"id: case/one\nsummary: One.\nmodel: small\nmicrobatches: [{{sequences: [16]}}]\n{text}\n"
    )
    (scenario,) = (item.scenario for item in load([path]).scenarios)
    with pytest.raises(ExportRefusedError, match=key) as caught:
        script_text(scenario)
    assert "\n" not in str(caught.value)
    assert "minimise" in str(caught.value) or "use " in str(caught.value)


def test_verdicts_that_need_more_than_one_process_are_refused():
    check_verdict(Verdict.WRONG_SELECTION)
    with pytest.raises(ExportRefusedError, match="state_leak"):
        check_verdict(Verdict.STATE_LEAK)


def test_hostile_words_stay_in_the_docstring(scenarios, tmp_path):
    from dataclasses import replace

    hostile = 'A """\nimport os; os.abort()\n\\ "'
    scenario = replace(
        scenarios["wrong-window"], summary=hostile, id="../../etc/x\ny", source=(hostile,)
    )
    tree = ast.parse(script_text(scenario))
    assert "abort" in ast.get_docstring(tree)
    names = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert "os" not in names
    assert script_name(scenario) == "repro_etc_x_y.py"
