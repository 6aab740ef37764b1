"""Row windows of the scoring kernel: right, short and long, and what is kept of its scores."""

from __future__ import annotations

import torch

from harness.evidence.windows import kernel_windows, watch_windows, window_evidence
from harness.kernels import modelled_namespace
from harness.layout import pack_sequences
from harness.production.hooks import ObservedNamespace
from harness.production.recorder import Recorder
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site

SITE = Site(global_rank=0, cp_rank=0)


def scored(release: str, rows: int, keys: int) -> Recorder:
    recorder = Recorder()
    watch_windows(recorder)
    namespace = ObservedNamespace(modelled_namespace(release, defects="none"), "modelled", recorder)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, rows, 32, 128, generator=generator).bfloat16()
    k = torch.randn(1, keys, 1, 128, generator=generator).bfloat16()
    w = torch.rand(1, rows, 32, generator=generator).bfloat16()
    namespace.indexer_forward_wrapper(q, k, w, ratio=1, sm_scale=1.0)
    return recorder


def test_top_left_without_offsets_hides_keys_from_a_back_half():
    table = rows_of_rank(pack_sequences([32], cp_size=1), 0).take(torch.arange(24, 32))
    windows = torch.zeros(32, dtype=torch.int64)
    windows[24:] = kernel_windows(scored("1.32.0", 8, 32), 1)
    found = window_evidence(windows, table, SITE)
    assert (found.rows, found.rows_equal, found.rows_short) == (8, 0, 8)
    assert (found.first_different, found.window, found.limit) == (24, 1, 25)


def test_bottom_right_shows_every_row_its_limit():
    table = rows_of_rank(pack_sequences([32], cp_size=1), 0).take(torch.arange(24, 32))
    windows = torch.zeros(32, dtype=torch.int64)
    windows[24:] = kernel_windows(scored("1.25.0", 8, 32), 1)
    found = window_evidence(windows, table, SITE)
    assert (found.rows_equal, found.rows_short, found.rows_long) == (8, 0, 0)
    assert found.first_different is None


def test_a_window_past_the_limit_counts_as_long():
    table = rows_of_rank(pack_sequences([4], cp_size=1), 0)
    found = window_evidence(torch.tensor([1, 2, 4, 4]), table, SITE)
    assert (found.rows_long, found.first_different) == (1, 2)


def test_score_matrices_are_not_kept():
    recorder = scored("1.25.0", 8, 32)
    (call,) = recorder.of("indexer_forward")
    assert set(call.result) == {"windows", "width"}
    namespace = ObservedNamespace(modelled_namespace("1.25.0"), "modelled", recorder)
    lengths = torch.full((8,), 32, dtype=torch.int32)
    namespace.indexer_top_k_wrapper(torch.rand(8, 32), lengths, top_k=4)
    (call,) = recorder.of("indexer_top_k")
    kept = [a for a in call.arguments.values() if isinstance(a, torch.Tensor) and a.dim() == 2]
    assert [(tuple(a.shape), a.device.type) for a in kept] == [((8, 32), "meta")]


def test_no_kernel_no_windows():
    assert kernel_windows(Recorder(), 1) is None


def test_silent_accesses_of_a_kernel_are_noted():
    from harness.evidence.collect import SILENT_ACCESS, Subject, collect
    from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario

    pack = pack_sequences([4], cp_size=1)
    scenario = Scenario(
        id="t",
        summary="",
        model=ModelSpec(name="small"),
        microbatches=(MicrobatchSpec(sequences=(4,)),),
    )
    subject = Subject(scenario=scenario, pack=pack, keys={}, site=SITE)
    recorder = Recorder()
    assert list(collect(recorder, subject)) == []
    namespace = modelled_namespace("1.26.0", defects=("long_lengths",))
    recorder.findings = namespace.findings
    lengths = torch.tensor([8, 4], dtype=torch.int32)
    namespace.indexer_top_k_wrapper(torch.rand(2, 4), lengths, top_k=2)
    notes = list(collect(recorder, subject))
    assert notes
    assert {note.topic for note in notes} == {SILENT_ACCESS}
    assert "row 0" in notes[0].text
