"""What the command line costs at the start, told by what it imports (in fresh processes)."""

import json
import subprocess
import sys

import pytest

from harness.scenario.files import PROJECT_ROOT
from launch.cli import COMMANDS

PROBE = """
import json, sys
from launch.cli import main
try:
    main(json.loads(sys.argv[1]))
except SystemExit as stop:
    print("\\n@@" + json.dumps({"code": stop.code, "modules": sorted(sys.modules)}))
"""
RUNTIME = ("torch", "megatron", "cudnn", "numpy", "transformer_engine")
CONTROL = ("pydantic", "yaml", "rich", "jinja2", "packaging", "hypothesis", "importlib.metadata")


def start(*arguments: str) -> tuple[int, set[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(arguments)],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    output, _, report = done.stdout.rpartition("@@")
    found = json.loads(report)
    return found["code"], set(found["modules"]), output


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ()])
def test_help_imports_no_subcommand_and_nothing_heavy(arguments):
    code, modules, output = start(*arguments)
    assert code == (0 if arguments else 2)
    assert modules.isdisjoint(RUNTIME + CONTROL)
    assert modules.isdisjoint(module for module, _, _ in COMMANDS.values())
    if arguments:
        for name, (_, _, line) in COMMANDS.items():
            assert name in output
            assert line in output


@pytest.mark.parametrize(
    "arguments",
    [("verify", "scenarios"), ("verify", "--explain", "scenarios"), ("list", "scenarios")],
)
def test_checks_import_neither_torch_nor_megatron(arguments):
    code, modules, output = start(*arguments)
    assert code == 0
    assert "quickstart" in output or "no errors" in output
    assert modules.isdisjoint((*RUNTIME, "rich", "jinja2", "hypothesis"))


def test_help_of_a_subcommand_reads_no_yaml():
    code, modules, _ = start("verify", "--help")
    assert code == 0
    assert modules.isdisjoint((*RUNTIME, *CONTROL))


def test_the_probe_sees_what_is_imported():
    """Healthy twin: the same probe on a command that does import YAML and pydantic."""
    _, modules, _ = start("verify", "scenarios")
    assert {"pydantic", "yaml", "launch.verify"} <= modules
