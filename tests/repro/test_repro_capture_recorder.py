"""The recorder: what it writes before the scorer runs, and that it waits for nothing."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path

import pytest
import torch
from recorded_jobs import Job, packed

from harness.production.look_alike import look_alike_device, to_device
from harness.production.transfers import _kind
from harness.record.transfers import DATA_SHAPE, HOST_READ, TO_HOST, WAIT
from harness.repro.capture_lines import read_capture
from harness.repro.job.dsa_capture import autoload, recorder
from harness.repro.job.dsa_capture.copies import MARK
from harness.repro.job.dsa_capture.scores import statistics


class HeldEvent:
    """An event that happens when the test says so, or only raises, as after a CUDA error."""

    def __init__(self) -> None:
        self.happened = False
        self.broken = False

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.happened


class StandIn:
    """CUDA as the recorder sees it."""

    def __init__(self) -> None:
        self.events: list[HeldEvent] = []
        self.is_capturing = False

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8).pin_memory()

    def event(self, like: torch.Tensor) -> HeldEvent:
        self.events.append(HeldEvent())
        return self.events[-1]

    def capturing(self, like: torch.Tensor) -> bool:
        return self.is_capturing


def lines(folder: Path) -> list[dict]:
    paths = sorted(folder.glob("rank*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def of(folder: Path, event: str) -> list[dict]:
    return [line for line in lines(folder) if line["e"] == event]


def wait_until(condition) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit, "the writer's thread did not come round"
        time.sleep(0.002)


def test_facts_of_a_microbatch_stand_in_the_file_before_the_call_goes_on(tmp_path):
    job = Job(folder=tmp_path, cp_size=4, cp_rank=2)
    params, rows = packed((30, 18), 4)
    job.recorder.enter(job.module(1), job.given(params, rows))
    line = of(tmp_path, "microbatch")[0]
    assert line["values"]["cu_seqlens_q"] == [0, 30, 48]
    assert line["values"]["cu_seqlens_q_padded"] == [0, 32, 56]
    assert line["cp"]["size"] == 4
    assert line["cp"]["rank"] == 2
    assert line["query"]["shape"] == [14, 64, 576]
    assert of(tmp_path, "process")[0]["versions"]["torch"] == torch.__version__
    assert of(tmp_path, "config")[0]["fields"]["dsa_indexer_topk"] == 16
    assert of(tmp_path, "enter")
    assert not of(tmp_path, "leave")


def test_lists_in_one_memory_are_copied_once(tmp_path):
    job = Job(folder=tmp_path)
    params, rows = packed((64, 32), 4)
    params.cu_seqlens_kv = params.cu_seqlens_q
    job.recorder.enter(job.module(1), job.given(params, rows))
    line = of(tmp_path, "microbatch")[0]
    assert line["same"] == {"cu_seqlens_kv": "cu_seqlens_q"}
    found = read_capture(tmp_path).ranks[0].microbatches[0]
    assert found.lists["cu_seqlens_kv"] == [0, 64, 96]


def on_device(job: Job, watcher=lambda _operation: None, waited=lambda: None):
    """Enter a microbatch whose boundaries lie on the device, with scores, and leave it."""
    with look_alike_device(watcher, waited):
        params, rows = packed((30, 18), 4, device=to_device)
        call = job.recorder.enter(job.module(1), job.given(params, rows))
        scores = torch.tensor([[1.0, -70000.0], [float("nan"), -torch.inf]])
        job.recorder.scores(to_device(scores), kernel="indexer_top_k")
        job.recorder.leave(call, None)
        return params


def test_nothing_waits_for_the_device(tmp_path):
    device, seen = StandIn(), []
    job = Job(folder=tmp_path, device=device)
    waits = []
    on_device(job, lambda operation: seen.append(operation), lambda: waits.append(WAIT))
    kinds = [kind for operation in seen if (kind := _kind(operation)) is not None]
    assert waits == []
    assert HOST_READ not in kinds
    assert DATA_SHAPE not in kinds
    copies = [operation for operation in seen if _kind(operation) == TO_HOST]
    assert len(copies) == 5
    assert all(operation.args[2] for operation in copies), "a copy that blocks"
    # And the twin that does read is seen by the same eyes.
    seen.clear()
    with look_alike_device(lambda operation: seen.append(operation), lambda: None):
        to_device(torch.ones(3)).sum().item()
    assert HOST_READ in [_kind(operation) for operation in seen]


def test_what_has_not_landed_at_the_fault_is_listed(tmp_path):
    device = StandIn()
    job = Job(folder=tmp_path, device=device)
    params = on_device(job)
    time.sleep(0.05)
    assert not of(tmp_path, "lengths")
    found = read_capture(tmp_path).ranks[0].microbatches[0]
    assert "cu_seqlens_q (not landed)" in found.not_landed
    assert "scores of 1 calls" in found.not_landed
    for event in device.events:
        event.happened = True
    wait_until(lambda: of(tmp_path, "scores") and of(tmp_path, "lengths"))
    found = read_capture(tmp_path).ranks[0].microbatches[0]
    assert found.not_landed == ()
    assert found.lists["cu_seqlens_q"] == [0, 30, 48]
    assert found.scores[0]["min"] == -70000
    assert found.scores[0]["max"] == 1
    assert found.scores[0]["below_fp16"] == 1
    assert found.scores[0]["nan"] == 1
    assert found.scores[0]["masked"] == 1
    del params


def test_after_a_cuda_error_only_whole_copies_count(tmp_path):
    device = StandIn()
    job = Job(folder=tmp_path, device=device)
    on_device(job)
    pending = job.recorder._copies._blocks
    # The device died in the middle of the second list.
    pending._memory[pending.block_bytes : pending.block_bytes + 12].view(torch.int32)[-1] = MARK
    for event in device.events:
        event.broken = True
    wait_until(lambda: of(tmp_path, "lengths"))
    line = of(tmp_path, "lengths")[0]
    assert line["after_error"] is True
    assert line["values"]["cu_seqlens_q"] == [0, 30, 48]
    assert len(line["values"]) == 3
    found = read_capture(tmp_path).ranks[0].microbatches[0]
    assert [name for name in found.not_landed if "cu_" in name] == ["cu_seqlens_kv (not landed)"]


def test_nothing_is_added_to_a_graph_that_is_being_captured(tmp_path):
    device = StandIn()
    device.is_capturing = True
    job = Job(folder=tmp_path, device=device)
    seen = []
    on_device(job, lambda operation: seen.append(operation))
    assert device.events == []
    assert [_kind(operation) for operation in seen if _kind(operation) == TO_HOST] == []
    states = of(tmp_path, "microbatch")[0]["states"]
    assert states["cu_seqlens_q"] == "not taken: a CUDA graph is being captured"


def test_a_ring_keeps_the_last_microbatches(tmp_path):
    job = Job(folder=tmp_path, settings={"ring": 3})
    for number in range(10):
        job.forward((64, 8 * (number + 1)))
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    rank = read_capture(tmp_path).ranks[0]
    assert list(rank.microbatches) == [6, 7, 8, 9]
    assert rank.microbatches[9].lists["cu_seqlens_q"] == [0, 64, 144]
    assert rank.configs[0]["dsa_indexer_topk"] == 16
    assert len(of(tmp_path, "process")) == 2


def test_layers_of_one_pack_are_one_microbatch_and_a_used_object_begins_another(tmp_path):
    job = Job(folder=tmp_path)
    params, rows = packed((64,), 4)
    for layer in (1, 2, 1, 2):
        call = job.recorder.enter(job.module(layer), job.given(params, rows))
        job.recorder.leave(call, None)
    rank = read_capture(tmp_path).ranks[0]
    assert [one.entered for one in rank.microbatches.values()] == [[1, 2], [1, 2]]


def test_an_unpacked_batch_is_no_layer_of_a_pack_that_is_gone(tmp_path):
    job = Job(folder=tmp_path)
    job.forward((64,), layers=(1,))
    gc.collect()
    job.recorder.enter(job.module(2), job.given(None, 8, batch=2))
    rank = read_capture(tmp_path).ranks[0]
    assert [one.facts["packed"] is None for one in rank.microbatches.values()] == [False, True]


def test_chunks_of_a_pipeline_find_their_microbatch_again(tmp_path):
    job = Job(folder=tmp_path)
    packs = [packed((64,), 4), packed((32,), 4)]
    for layers in ((1, 2), (5, 6)):
        for params, rows in packs:
            for layer in layers:
                job.recorder.enter(job.module(layer), job.given(params, rows))
    rank = read_capture(tmp_path).ranks[0]
    assert [one.entered for one in rank.microbatches.values()] == [[1, 2, 5, 6], [1, 2, 5, 6]]


def test_recomputation_is_a_replay_of_its_own_microbatch(tmp_path):
    job = Job(folder=tmp_path)
    weight = torch.ones(1, requires_grad=True)

    def attention(params, rows, given):
        call = job.recorder.enter(job.module(1), job.given(params, rows))
        output = given * given
        job.recorder.leave(call, output)
        return output

    outputs = []
    for lengths in ((64,), (32,)):
        params, rows = packed(lengths, 4)
        outputs.append(
            torch.utils.checkpoint.checkpoint(
                attention, params, rows, weight, use_reentrant=False
            ).sum()
        )
    outputs[0].backward()
    outputs[1].backward()
    rank = read_capture(tmp_path).ranks[0]
    assert [one.replayed for one in rank.microbatches.values()] == [{1}, {1}]
    assert rank.steps == ["F0", "F1", "B0", "B1"]


def test_evaluation_is_told_from_training(tmp_path):
    job = Job(folder=tmp_path)
    job.forward((64,))
    job.forward((32,), training=False)
    rank = read_capture(tmp_path).ranks[0]
    assert [one.facts["training"] for one in rank.microbatches.values()] == [True, False]


def test_the_recorder_holds_no_pack(tmp_path):
    job = Job(folder=tmp_path)
    params = job.forward((64,))
    before = {id(one) for one in gc.get_referrers(params)}
    assert not [one for one in gc.get_referrers(params) if id(one) == id(job.recorder)]
    del params, before
    gc.collect()
    assert [one.carrier() for one in job.recorder._recent] == [None]


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path, monkeypatch):
    job = Job(folder=tmp_path)
    job.forward((64,))
    real = os.write

    def short(descriptor, data):
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", short)
    job.forward((32,))
    monkeypatch.undo()
    job.forward((16,))
    rank = read_capture(tmp_path).ranks[0]
    assert rank.num_broken
    assert list(rank.microbatches) == [2]


def test_tensors_are_kept_within_their_budget(tmp_path):
    job = Job(folder=tmp_path, settings={"tensor_bytes": 100})
    for _ in range(3):
        params, rows = packed((64,), 4)
        call = job.recorder.enter(job.module(1), job.given(params, rows))
        job.recorder.tensors({"q": torch.ones(8), "k": torch.ones(4, dtype=torch.bfloat16)})
        job.recorder.leave(call, None)
    kept = sorted((tmp_path / "tensors").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 100
    assert [path.name.split(".", 3)[3] for path in kept if ".mb2." in path.name] == [
        "mb2.layer1.k.bin",
        "mb2.layer1.q.bin",
    ]
    found = read_capture(tmp_path).ranks[0].microbatches[2]
    assert set(found.tensors.values()) == {"kept"}
    over = Job(folder=tmp_path / "over", settings={"tensor_bytes": 10})
    over.forward((64,), layers=())
    params, rows = packed((64,), 4)
    over.recorder.enter(over.module(1), over.given(params, rows))
    over.recorder.tensors({"q": torch.ones(8)})
    found = read_capture(tmp_path / "over").ranks[0].microbatches[0]
    assert list(found.tensors.values()) == ["not kept: 32 bytes, the budget is 10"]


def test_no_tensor_is_kept_unasked(tmp_path):
    job = Job(folder=tmp_path)
    params, rows = packed((64,), 4)
    job.recorder.enter(job.module(1), job.given(params, rows))
    job.recorder.tensors({"q": torch.ones(8)})
    assert not (tmp_path / "tensors").exists()


def test_statistics_leave_masked_cells_out():
    scores = torch.tensor([[3.0, -torch.inf, -65505.0], [torch.inf, torch.nan, 2.0]])
    least, most, cells, masked, below, nan, infinite = statistics(scores).tolist()
    assert (least, most, cells) == (-65505.0, 3.0, 6.0)
    assert (masked, below, nan, infinite) == (1, 1, 1, 1)


def test_switched_on_by_the_environment_alone(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr("harness.repro.job.dsa_capture.switch_on", lambda: started.append(1))
    monkeypatch.delenv("DSA_HARNESS_CAPTURE", raising=False)
    autoload()
    assert started == []
    monkeypatch.setenv("DSA_HARNESS_CAPTURE", str(tmp_path))
    autoload()
    assert started == [1]


def test_a_broken_recorder_does_not_break_the_import_of_torch(monkeypatch, tmp_path, capsys):
    def broken():
        raise OSError("no such folder")

    monkeypatch.setattr("harness.repro.job.dsa_capture.switch_on", broken)
    monkeypatch.setenv("DSA_HARNESS_CAPTURE", str(tmp_path))
    autoload()
    assert "not switched on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "field", "taken"),
    [
        ("RING", "many", "ring", 32),
        ("RING", "0", "ring", 32),
        ("SCORES", "sometimes", "score_rows", "auto"),
        ("TENSORS", "lots", "tensor_bytes", 0),
        ("LAYERS", "first", "tensor_layers", ()),
    ],
)
def test_a_setting_that_cannot_be_read_is_said_and_left(name, text, field, taken, capsys):
    from harness.repro.job.dsa_capture.settings import Settings

    read = Settings.from_environment("d", {f"DSA_HARNESS_CAPTURE_{name}": text})
    assert getattr(read, field) == taken
    assert repr(text)[1:-1] in capsys.readouterr().err


def test_settings_are_read():
    from harness.repro.job.dsa_capture.settings import Settings

    given = {"RING": "5", "SCORES": "64", "TENSORS": "2GiB", "LAYERS": "1, 3"}
    read = Settings.from_environment(
        "d", {f"DSA_HARNESS_CAPTURE_{name}": text for name, text in given.items()}
    )
    assert (read.ring, read.score_rows, read.tensor_bytes) == (5, 64, 2 * 2**30)
    assert read.tensor_layers == (1, 3)


def test_lines_have_a_version():
    assert recorder.SCHEMA == 1
