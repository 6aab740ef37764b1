"""``dsa-harness certify`` on a machine without a GPU."""

import json

import pytest
import torch
from click.testing import CliRunner

from harness.kernels import detect
from launch.certify import certify

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a GPU changes")


def call(*arguments):
    return CliRunner().invoke(certify, arguments)


@needs_no_gpu
def test_without_a_gpu_nothing_ran_and_nothing_is_written(tmp_path):
    found = call("--out", str(tmp_path / "c.json"))
    assert found.exit_code == 5
    assert "not run: no usable GPU" in found.output
    assert list(tmp_path.iterdir()) == []


def test_kernels_that_do_not_load_are_named(monkeypatch):
    facts = detect.KernelFacts(
        accepts_causal_offsets=None, mask_alignment=None, reason="No module named 'cutlass'"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(detect, "installed_facts", lambda: facts)
    found = call()
    assert found.exit_code == 5
    assert "do not load: No module named 'cutlass'" in found.output


def test_cases_are_listed_with_their_basis():
    lines = call("--list", "--only", "indexer_forward/mask_leak/*").output.splitlines()
    assert len(lines) == 4
    assert all("deduced" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stand-in", "9.9@sm90"], "expected RELEASE@ARCH"),
        (["--stand-in", "1.32.0@sm90", "--defects", "nonsense"], "no defect is called nonsense"),
        (["--stand-in", "1.32.0@sm90", "--plant", "cell"], "then :CASE"),
        (["--plant", "cell:x"], "goes with --stand-in"),
        (["--defects", "none"], "--defects: goes with --stand-in"),
        (["--list", "--defects", "as_released"], "--defects: goes with --stand-in"),
        (["--list", "--only", "nothing/*"], "no case is called like nothing/*"),
        (["--stand-in", "1.32.0@sm90", "--plant", "cell:x"], "no case that runs is called x"),
        (["--stand-in", "1.32.0@sm90", "--only", "zzz"], "no case is called like zzz"),
    ],
)
def test_bad_usage_is_one_line(arguments, message):
    found = call(*arguments)
    assert found.exit_code == 2
    assert message in found.output


def test_a_planted_cell_is_found_and_the_certificate_is_labelled(tmp_path):
    out = tmp_path / "c.json"
    case = "indexer_top_k/arguments/padded_view"
    arguments = [
        "--stand-in", "1.32.0@sm90", "--only", "indexer_top_k/arguments/*",
        "--plant", f"cell:{case}", "--out", str(out),
    ]  # fmt: skip
    found = CliRunner().invoke(certify, arguments, standalone_mode=False)
    assert found.return_value == 1, found.output
    record = json.loads(out.read_text())
    assert record["stand_in"] == "1.32.0@sm90"
    assert not record["complete"]
    assert [item["name"] for item in record["cases"] if item["state"] == "differs"] == [case]
