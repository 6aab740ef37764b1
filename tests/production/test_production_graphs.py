"""Construction under graph modes: what is said, how often, and what the contract asks for."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace

import pytest

from harness.production import graphs, preload  # noqa: F401 (imports Megatron once)
from harness.production.config import transformer_config
from harness.scenario.spec import (
    GraphSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
)

MODEL = ModelSpec(name="tiny", hidden_size=64, ffn_hidden_size=64, num_attention_heads=4)
TEXT = "packed DSA with context parallelism is not captured by CUDA graphs"


def scenario(impl: str = "local", *, cp: int = 2, dynamic: bool = False, **more) -> Scenario:
    return Scenario(
        id="t",
        summary="",
        model=MODEL,
        level="attention",
        parallel=ParallelSpec(context_parallel_size=cp, dynamic_context_parallel=dynamic),
        microbatches=(MicrobatchSpec(sequences=(8, 8), **more),),
        graph=GraphSpec(cuda_graph_impl=impl),
    )


@pytest.mark.parametrize("impl", ["none", "local", "full_iteration"])
def test_the_installed_build_constructs_every_mode_and_says_nothing_of_packed_dsa(impl):
    built = graphs.construct(scenario(impl), modelled=False)
    assert built.constructs, built.refusal
    assert not [warning for warning in built.warnings if warning.about_packed_dsa]
    config = transformer_config(scenario(impl), modelled=False, graphs=True)
    assert config.cuda_graph_impl == impl
    assert transformer_config(scenario(impl), modelled=False).cuda_graph_impl == "none"


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("say", [warnings.warn, logging.getLogger("megatron.x").warning])
def test_a_warning_is_counted_however_it_is_said(monkeypatch, times, say):
    def build(*_args, **_kwargs):
        for _ in range(times):
            say(TEXT)
        say("something else")

    monkeypatch.setattr(graphs, "transformer_config", build)
    built = graphs.construct(scenario(), modelled=False)
    assert sum(w.count for w in built.warnings if w.about_packed_dsa) == times
    assert [w.text for w in built.warnings if not w.about_packed_dsa] == ["something else"]


def test_a_refusal_is_kept_with_its_class(monkeypatch):
    def build(*_args, **_kwargs):
        raise ValueError("not with these modules")

    monkeypatch.setattr(graphs, "transformer_config", build)
    built = graphs.construct(scenario(), modelled=False)
    assert (built.constructs, built.refusal) == (False, "ValueError: not with these modules")


@pytest.mark.parametrize(
    ("case", "due"),
    [
        (scenario("none", cp=4), 0),
        (scenario("local", cp=1), 0),
        (scenario("local", cp=2), 1),
        (scenario("full_iteration", cp=2), 1),
        (scenario("local", cp=1, dynamic=True), 1),
        (scenario("none", cp=1, dynamic=True), 0),
        (scenario("local", cp=2, qkv_format="sbhd"), 0),
    ],
)
def test_the_contract_asks_for_one_warning_where_packed_dsa_is_spread(case, due):
    assert graphs.warnings_due(case) == due
    other = replace(case, kernels=replace(case.kernels, dsa_kernel_backend="cudnn"))
    assert graphs.warnings_due(other) == due


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (TEXT, True),
        ("Dynamic context parallelism and DSA under CUDA Graphs: ...", True),
        ("full scope is deprecated. Use empty cuda_graph_modules", False),
        ("DSA packs sequences", False),
    ],
)
def test_other_warnings_are_not_taken_for_it(text, about):
    assert graphs.about_packed_dsa(text) is about
