"""Overlay causal_offsets: right offsets, right picks, refusals, and use outside the harness."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from harness.kernels import modelled_namespace
from harness.overlays import OVERLAYS, OverlayRefusedError
from harness.overlays.causal_offsets import CausalOffsets, due_offsets, install
from harness.scenario.names import OVERLAYS as NAMES

CALLER = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"


def inputs(rows: int, keys: int):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, rows, 32, 128, generator=generator).bfloat16()
    k = torch.randn(1, keys, 1, 128, generator=generator).bfloat16()
    w = torch.rand(1, rows, 32, generator=generator).bfloat16()
    return q, k, w


def visible(scores: torch.Tensor) -> list[int]:
    return (scores != -torch.inf).sum(dim=-1).flatten().tolist()


def test_scenario_files_know_exactly_the_overlays_there_are():
    assert set(NAMES) == set(OVERLAYS)


def test_offset_of_a_batch_is_what_bottom_right_alignment_needs():
    q, k, _w = inputs(8, 32)
    assert due_offsets({"q": q, "k": k, "ratio": 1}).tolist() == [24]
    assert due_offsets({"q": q, "k": k, "ratio": 2}).tolist() == [56]


def test_offsets_of_segments_follow_from_their_lengths():
    q, k, _w = inputs(8, 32)
    arguments = {
        "q": q[0],
        "k": k[0],
        "cu_seqlens_q": torch.tensor([0, 4, 8], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 12, 32], dtype=torch.int32),
    }
    offsets = due_offsets(arguments)
    assert offsets.tolist() == [8, 16]
    assert offsets.dtype is torch.int32


@pytest.mark.parametrize("release", ["1.26.0", "1.27.0", "1.29.1", "1.32.0"])
def test_with_it_each_row_sees_its_limit_and_without_it_a_window(release):
    namespace = modelled_namespace(release, defects="none")
    due = list(range(25, 33))
    bare = namespace.indexer_forward_wrapper(*inputs(8, 32), ratio=1)["scores"]
    assert visible(bare) == list(range(1, 9))
    corrected = CausalOffsets().wrap(namespace)
    assert visible(corrected.indexer_forward_wrapper(*inputs(8, 32), ratio=1)["scores"]) == due


def test_a_callers_own_offsets_are_left_alone():
    corrected = CausalOffsets().wrap(modelled_namespace("1.32.0"))
    own = torch.tensor([3], dtype=torch.int32)
    scores = corrected.indexer_forward_wrapper(*inputs(8, 32), ratio=1, q_causal_offsets=own)
    assert visible(scores["scores"]) == list(range(4, 12))


def test_other_attributes_pass_through():
    namespace = modelled_namespace("1.32.0")
    corrected = CausalOffsets().wrap(namespace)
    assert corrected.indexer_top_k_wrapper is namespace.indexer_top_k_wrapper
    with pytest.raises(AttributeError):
        corrected.no_such_wrapper  # noqa: B018


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"passes_causal_offsets": True}, "passes q_causal_offsets itself"),
        ({"accepts_causal_offsets": False}, "use cudnn-frontend 1.26 or later"),
    ],
)
def test_builds_it_does_not_fit_are_refused(facts, said):
    with pytest.raises(OverlayRefusedError, match=said):
        CausalOffsets().check(facts)
    CausalOffsets().check({"passes_causal_offsets": False, "accepts_causal_offsets": True})


def test_an_older_kernel_is_refused_before_it_is_called():
    with pytest.raises(OverlayRefusedError, match="bottom-right"):
        CausalOffsets().wrap(modelled_namespace("1.25.0")).indexer_forward_wrapper  # noqa: B018


def test_install_and_uninstall_in_a_training_process(monkeypatch):
    from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)

    caller = sys.modules[CALLER]
    namespace = modelled_namespace("1.32.0", defects="none")
    monkeypatch.setattr(caller, "_cudnn_dsa", namespace)
    uninstall = install()
    scores = caller._cudnn_dsa.indexer_forward_wrapper(*inputs(8, 32), ratio=1)["scores"]
    assert visible(scores) == list(range(25, 33))
    uninstall()
    assert caller._cudnn_dsa is namespace


@pytest.fixture
def caller(monkeypatch):
    """Megatron's caller before its first call, and kernels for it to import."""
    from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)

    cudnn = types.ModuleType("cudnn")
    cudnn.DSA = modelled_namespace("1.32.0", defects="none")
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    found = sys.modules[CALLER]
    monkeypatch.setattr(found, "_cudnn_dsa", None)
    return found


def test_after_removing_the_caller_imports_its_kernels_itself_again(caller):
    uninstall = install()
    assert visible(
        caller._cudnn_dsa.indexer_forward_wrapper(*inputs(8, 32), ratio=1)["scores"]
    ) == list(range(25, 33))
    uninstall()
    assert caller._cudnn_dsa is None


def test_it_is_installed_once_and_removed_in_order(caller):
    uninstall = install()
    with pytest.raises(OverlayRefusedError, match="on in this process already"):
        install()
    on, caller._cudnn_dsa = caller._cudnn_dsa, object()
    with pytest.raises(OverlayRefusedError, match="reverse order"):
        uninstall()
    caller._cudnn_dsa = on
    uninstall()
    uninstall()
    assert caller._cudnn_dsa is None


def test_without_kernels_or_caller_the_refusal_is_one_sentence(caller, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(OverlayRefusedError, match="expected the cuDNN kernels, found none"):
        install()
    assert caller._cudnn_dsa is None
    monkeypatch.setitem(sys.modules, CALLER, None)
    with pytest.raises(OverlayRefusedError, match="overlay causal_offsets: expected the module"):
        install()


def test_install_refuses_a_caller_that_passes_offsets(monkeypatch, tmp_path):
    source = tmp_path / "fixed_caller.py"
    source.write_text("def call(ns, q):\n    return ns.forward(q, q_causal_offsets=None)\n")
    fixed = types.ModuleType("fixed_caller")
    fixed.__file__ = str(source)
    monkeypatch.setitem(sys.modules, CALLER, fixed)
    with pytest.raises(OverlayRefusedError, match="passes q_causal_offsets itself"):
        install()
