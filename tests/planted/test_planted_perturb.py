"""Calls broken on purpose: a hardened build refuses them, the released one does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_runs import ROOT, Run, run

from harness.production.call_checks import call_facts
from harness.production.locate import DSA_FOLDER, find_build
from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

FOLDER = ROOT / "scenarios" / "perturb"
REFUSED = ("device", "dtype", "view", "tp-slice", "missing-starts", "missing-ends")
RELEASED = {
    "device": (Outcome.KNOWN, Verdict.CRASH),
    "dtype": (Outcome.KNOWN, Verdict.CRASH),
    "gradient-arity": (Outcome.KNOWN, Verdict.CRASH),
    "tp-slice": (Outcome.KNOWN, Verdict.WRONG_SELECTION),
    "view": (Outcome.EXPECTED, Verdict.PASS),
    "missing-starts": (Outcome.EXPECTED, Verdict.PASS),
    "missing-ends": (Outcome.EXPECTED, Verdict.PASS),
    "untouched": (Outcome.EXPECTED, Verdict.PASS),
}
_ENTRY = '    fn = _resolve_fused_hook(config, "run_fused_dsa_attention")\n'
_CHECKS = """\
    if q_indexer.device != k_indexer.device:
        raise ValueError("q_indexer and k_indexer are on different devices")
    if q_indexer.dtype != k_indexer.dtype:
        raise ValueError("q_indexer and k_indexer have different dtypes")
    if not q_indexer.is_contiguous():
        raise ValueError("q_indexer is no dense tensor")
    if q_indexer.size(2) != config.dsa_indexer_n_heads:
        raise ValueError("q_indexer holds a part of the heads")
    if (varlen_starts is None) != (varlen_ends is None):
        raise ValueError("starts and ends go together")
"""


def hardened(root: Path) -> Path:
    """A checkout of links to the installed build, but for a dispatcher that checks its caller."""
    installed = find_build().package
    kept = ("core", "transformer", "experimental_attention_variant", "dsa_kernels.py")
    source, target = installed, root / "megatron"
    for name in kept:
        target.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name not in (name, "__pycache__"):
                (target / entry.name).symlink_to(entry)
        source, target = source / name, target / name
    text = source.read_text(encoding="utf-8")
    assert text.count(_ENTRY) == 1
    target.write_text(text.replace(_ENTRY, _CHECKS + _ENTRY), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def checked(tmp_path_factory) -> Run:
    checkout = hardened(tmp_path_factory.mktemp("hardened"))
    facts = call_facts(checkout / "megatron" / DSA_FOLDER)
    assert all(facts[name] for name in facts if name.startswith("refuses") and "arity" not in name)
    paths = [FOLDER / f"{name}.yaml" for name in (*REFUSED, "untouched")]
    out = tmp_path_factory.mktemp("runs")
    return run(2, paths, out, "--megatron", str(checkout), timeout_s=540)


@pytest.mark.parametrize("name", REFUSED)
def test_a_hardened_build_refuses_before_any_kernel(checked, name):
    result = checked.results[f"perturb/{name}"]
    assert result.verdict is Verdict.REFUSED, result.explanation
    assert result.outcome is Outcome.EXPECTED
    assert result.last.perturbations
    assert all(item.kernels == () for item in result.last.perturbations)
    assert result.last.calls == ()


def test_a_hardened_build_takes_the_call_left_alone(checked):
    result = checked.results["perturb/untouched"]
    assert (result.outcome, result.verdict) == (Outcome.EXPECTED, Verdict.PASS)
    assert result.last.perturbations == ()


def test_the_run_of_a_hardened_build_is_a_success(checked):
    assert checked.record.exit_code == 0


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Run:
    return run(2, [FOLDER], tmp_path_factory.mktemp("runs"), timeout_s=540)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_the_released_build_is_judged_by_what_comes_out(released, name):
    result = released.results[f"perturb/{name}"]
    assert (result.outcome, result.verdict) == RELEASED[name], result.explanation
    broken = result.last.perturbations
    ranks = {item.global_rank for item in broken}
    if result.verdict is Verdict.CRASH:
        # The first rank to crash ends the scenario; the other may not have come that far.
        first = result.last.fault.global_rank
        assert any(item.kernels for item in broken if item.global_rank == first)
        assert ranks <= {0, 1}
    else:
        assert ranks == (set() if name == "untouched" else {0, 1})
    if name.startswith("missing"):
        assert any(item.declined for item in broken)
