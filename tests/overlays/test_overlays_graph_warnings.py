"""Overlay graph_warnings: warns where the public contract says so, and nowhere else."""

from __future__ import annotations

import itertools
import types
from dataclasses import replace

import overlay_builds
import pytest
import torch

from harness.overlays import graph_warnings
from harness.overlays.refusal import OverlayRefusedError
from harness.production.graphs import construct, warnings_due
from harness.scenario.spec import (
    GraphSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
)

PACKED = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small"),
    microbatches=(MicrobatchSpec(sequences=(32, 16)),),
)
CELLS = list(
    itertools.product(
        ("none", "local", "transformer_engine", "full_iteration"), (1, 2), ("none", "cudnn")
    )
)


@pytest.fixture
def overlay():
    undo = graph_warnings.install()
    yield
    undo()


@pytest.fixture(autouse=True)
def host(monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")


def cell(impl: str, cp_size: int, backend: str) -> Scenario:
    return replace(
        PACKED,
        kernels=KernelsSpec(dsa_kernel_backend=backend, source="modelled"),
        parallel=ParallelSpec(context_parallel_size=cp_size),
        graph=GraphSpec(cuda_graph_impl=impl),
    )


@pytest.mark.parametrize(("impl", "cp_size", "backend"), CELLS)
def test_each_cell_of_the_contract_warns_once_or_not_at_all(overlay, impl, cp_size, backend):
    scenario = cell(impl, cp_size, backend)
    built = construct(scenario, modelled=backend == "cudnn")
    assert built.constructs, built.refusal
    told = sum(warning.count for warning in built.warnings if warning.about_packed_dsa)
    assert told == warnings_due(scenario) == int(impl != "none" and cp_size > 1)


def test_without_it_no_configuration_warns_of_packed_dsa():
    built = construct(cell("local", 2, "none"), modelled=False)
    assert not any(warning.about_packed_dsa for warning in built.warnings)


def config(**fields):
    plain = {
        "cuda_graph_impl": "local",
        "experimental_attention_variant": "dsa",
        "context_parallel_size": 1,
    }
    return types.SimpleNamespace(**(plain | fields))


@pytest.mark.parametrize("name", ["dynamic_context_parallel", "hybrid_context_parallel"])
def test_dynamic_cp_warns_at_configured_size_one(name):
    assert graph_warnings.due_warning(config()) is None
    assert "Dynamic CP" in graph_warnings.due_warning(config(**{name: True}))
    silent = config(**{name: True}, cuda_graph_impl="none")
    assert graph_warnings.due_warning(silent) is None


def test_other_attention_is_none_of_its_business():
    other = config(experimental_attention_variant=None, context_parallel_size=4)
    assert graph_warnings.due_warning(other) is None


def test_what_a_configuration_refuses_it_still_refuses(overlay):
    from megatron.core.transformer.transformer_config import TransformerConfig

    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(ValueError, match="fp16"):
        TransformerConfig(**sizes, fp16=True, bf16=True)


def test_a_build_that_warns_is_refused(monkeypatch):
    monkeypatch.setattr(graph_warnings, "_warns", lambda module: True)
    before = overlay_builds.snapshot()
    with pytest.raises(OverlayRefusedError, match="warns of packed DSA under CUDA graphs itself"):
        graph_warnings.install()
    assert overlay_builds.snapshot() == before
