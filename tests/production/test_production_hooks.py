"""The hook table fits the installed build, reports calls, and is loud when a symbol is gone."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch

from harness.production import preload  # noqa: F401 (imports Megatron once, warnings silenced)
from harness.production.hooks import (
    HOOKS,
    MissingHookError,
    ObservedNamespace,
    installed,
    observed_kernel,
)
from harness.production.recorder import Recorder
from harness.record.phase import Phase

LAYOUT = "megatron.core.transformer.experimental_attention_variant.dsa_layout"
BUILDER = "build_zigzag_allgather_cp_key_reorder"


def test_every_hook_is_there_and_put_back():
    module = importlib.import_module(LAYOUT)
    original = getattr(module, BUILDER)
    with installed(Recorder(), "0.19.2"):
        assert getattr(module, BUILDER) is not original
    assert getattr(module, BUILDER) is original


def test_a_call_is_recorded_with_phase_arguments_and_result():
    phases: list[Phase] = []
    recorder = Recorder(on_phase=phases.append)
    module = importlib.import_module(LAYOUT)
    with installed(recorder, "0.19.2"):
        result = getattr(module, BUILDER)(4, 2, torch.device("cpu"))
    (call,) = recorder.of("zigzag_reorder")
    assert call.returned
    assert torch.equal(call.result, result)
    assert call.arguments["sq"] == 4 and call.arguments["cp_size"] == 2
    assert phases == [Phase.LAYOUT]


def test_a_vanished_hook_names_symbol_and_version(monkeypatch):
    module = importlib.import_module(LAYOUT)
    monkeypatch.delattr(module, BUILDER)
    missing = pytest.raises(MissingHookError, match=rf"0\.99\.0 has no {LAYOUT}\.{BUILDER}")
    with missing, installed(Recorder(), "0.99.0"):
        pass


def test_hooks_already_installed_are_put_back_when_a_later_one_is_missing(monkeypatch):
    first = HOOKS[0]
    module = importlib.import_module(first.module)
    owner = getattr(module, first.attribute.split(".")[0])
    original = owner.forward
    monkeypatch.delattr(importlib.import_module(LAYOUT), BUILDER)
    with pytest.raises(MissingHookError), installed(Recorder(), "0.99.0"):
        pass
    assert owner.forward is original


def test_a_call_that_raises_stays_on_record_as_not_returned():
    recorder = Recorder()

    def broken(x: int) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        observed_kernel(broken, "broken", "modelled", recorder)(x=1)
    (call,) = recorder.calls
    assert not call.returned and call.arguments == {"x": 1}


def test_namespace_passes_through_and_fails_like_the_real_one():
    class Namespace:
        version = "1.32.0"

        def indexer_top_k_wrapper(self, scores, top_k):
            return {"indices": scores}

    recorder = Recorder()
    namespace = ObservedNamespace(Namespace(), "modelled", recorder)
    assert namespace.version == "1.32.0"
    assert namespace.indexer_top_k_wrapper(3, top_k=2) == {"indices": 3}
    assert recorder.counts() == {"indexer_top_k": 1}
    with pytest.raises(AttributeError):
        namespace.no_such_wrapper  # noqa: B018


def test_transform_changes_what_the_caller_gets():
    recorder = Recorder()
    recorder.transforms["double"] = lambda call, result: result * 2
    assert recorder.record("double", "modelled", None, {}, lambda: 21) == 42
    assert recorder.calls[0].result == 42


def test_selected_keys_are_kept_as_returned_though_the_caller_overwrites_them():
    recorder = Recorder()
    indices, scores = torch.tensor([3, -1]), torch.tensor([0.5, 0.25])
    got = recorder.record("fused_topk", "megatron", None, {}, lambda: (indices, scores))
    got[0].clamp_min_(0)
    kept_indices, kept_scores = recorder.calls[0].result
    assert kept_indices.tolist() == [3, -1]
    assert kept_scores is scores


def test_arguments_can_be_dressed_on_their_way_in():
    recorder = Recorder()
    recorder.dressers["zigzag_reorder"] = lambda name, value: 8 if name == "sq" else value
    module = importlib.import_module(LAYOUT)
    with installed(recorder, "0.19.2"):
        result = getattr(module, BUILDER)(4, 2, torch.device("cpu"))
    assert result.numel() == 16
    assert recorder.of("zigzag_reorder")[0].arguments["sq"] == 8


def test_facts_say_which_hooks_a_build_must_have():
    with installed(Recorder(), "0.19.2", {"has_scoring_plan": False}):
        pass
    missing = pytest.raises(MissingHookError, match=r"0\.99\.0 has no .*dsa_scoring_plan.*'plan'")
    with missing, installed(Recorder(), "0.99.0", {"has_scoring_plan": True}):
        pass


def test_hooks_that_a_build_may_lack_are_named():
    recorder = Recorder()
    with installed(recorder, "0.19.2"):
        assert "plan" in recorder.absent and "fused_topk" not in recorder.absent


def test_a_function_imported_by_name_is_observed_there_and_put_back(monkeypatch):
    layout = importlib.import_module(LAYOUT)
    original = layout.build_packed_cp_indexer_layout
    importer = types.ModuleType("importer")
    importer.build_packed_cp_indexer_layout = original
    monkeypatch.setitem(sys.modules, LAYOUT.replace("dsa_layout", "dsa_importer"), importer)
    # As an import does it.
    variant = importlib.import_module(LAYOUT.rpartition(".")[0])
    monkeypatch.setattr(variant, "dsa_importer", importer, raising=False)
    recorder = Recorder()
    with installed(recorder, "0.19.2"):
        boundaries = torch.tensor([0, 8])
        importer.build_packed_cp_indexer_layout(
            boundaries, boundaries, cp_size=2, cp_rank=0, key_size=8
        )
        assert recorder.counts() == {"segment_tables": 1}, "seen once"
    assert importer.build_packed_cp_indexer_layout is original
    assert layout.build_packed_cp_indexer_layout is original


def test_calls_aside_are_kept_apart_and_free_of_planted_faults():
    recorder = Recorder()
    recorder.transforms["double"] = lambda call, result: result * 2
    recorder.record("double", "modelled", None, {}, lambda: 1)
    with recorder.aside() as calls:
        assert recorder.record("double", "modelled", None, {}, lambda: 21) == 21
    assert [call.result for call in calls] == [21]
    assert [call.result for call in recorder.calls] == [2]
    assert recorder.record("double", "modelled", None, {}, lambda: 3) == 6


def test_a_call_keeps_who_made_it_and_how_long_it_took():
    recorder = Recorder()
    module = importlib.import_module(LAYOUT)

    def asks() -> None:
        getattr(module, BUILDER)(4, 2, torch.device("cpu"))

    with installed(recorder, "0.19.2"):
        asks()
    (call,) = recorder.calls
    assert call.caller.endswith("asks")
    assert call.took_s > 0
