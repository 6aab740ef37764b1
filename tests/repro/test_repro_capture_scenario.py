"""A capture as a scenario: the same history, or a smaller one that says what it lost."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from recorded_jobs import SMALL, Job, packed, pr14_capture

from harness.record.codec import loads
from harness.record.verdict import Verdict
from harness.repro.capture_lines import read_capture
from harness.repro.capture_records import CaptureError
from harness.repro.capture_scenario import Wishes, scenario_from
from harness.repro.signature import Signature
from harness.scenario.loader import load
from launch.cli import cli


def made(folder, **wishes):
    return scenario_from(read_capture(folder), Wishes(**wishes))


def test_a_history_keeps_order_lengths_padding_and_tail(tmp_path):
    job = Job(folder=tmp_path, cp_size=4)
    job.forward((64, 32))
    params, rows = packed((30, 0, 18), 4, tail=16)
    job.recorder.enter(job.module(1), job.given(params, rows))
    scenario = made(tmp_path).scenario
    first, second = scenario.microbatches
    assert first.sequences == (64, 32)
    assert second.sequences == (30, 0, 18)
    assert second.padded == "auto"
    assert second.tail_padding == 16
    assert scenario.parallel.context_parallel_size == 4
    assert scenario.level == "attention"
    assert scenario.kernels.dsa_kernel_backend == "none"
    assert scenario.model.dsa_indexer_topk == 16
    assert scenario.model.num_attention_heads == 4


def test_explicit_padding_and_other_key_lengths_are_kept(tmp_path):
    import torch

    job = Job(folder=tmp_path, cp_size=2)
    params, _rows = packed((8, 8), 2)
    params.cu_seqlens_q = torch.tensor([0, 5, 9], dtype=torch.int32)
    params.cu_seqlens_q_padded = torch.tensor([0, 12, 20], dtype=torch.int32)
    params.cu_seqlens_kv_padded = torch.tensor([0, 16, 24], dtype=torch.int32)
    job.recorder.enter(job.module(1), job.given(params, 10))
    (microbatch,) = made(tmp_path).scenario.microbatches
    assert microbatch.sequences == (5, 4)
    assert microbatch.padded == (12, 8)
    assert microbatch.kv_sequences == (8, 8)
    assert microbatch.kv_padded == (16, 8)


def test_unpacked_batches(tmp_path):
    job = Job(folder=tmp_path, cp_size=2)
    job.recorder.enter(job.module(1), job.given(None, 32, batch=3))
    (microbatch,) = made(tmp_path).scenario.microbatches
    assert microbatch.qkv_format == "sbhd"
    assert microbatch.sequences == (64, 64, 64)


def test_dynamic_cp_and_evaluation_steps(tmp_path):
    job = Job(folder=tmp_path, cp_size=4)
    job.forward((64,), cp_size=1)
    job.forward((64, 32), training=False)
    job.forward((48,), cp_size=2)
    scenario = made(tmp_path).scenario
    assert scenario.parallel.dynamic_context_parallel
    assert [one.cp for one in scenario.microbatches] == [1, None, 2]
    assert [one.forward_only for one in scenario.microbatches] == [False, True, False]
    assert not any(one.forward_only for one in made(tmp_path, level="scorer").scenario.microbatches)


def test_schedule_and_recomputation(tmp_path):
    job = Job(folder=tmp_path, fields={**SMALL, "recompute_granularity": "full"})
    first, second = job.forward((64,)), job.forward((32,))
    job.recorder._backward(0, None)
    job.recorder._backward(1, None)
    scenario = made(tmp_path, level="model").scenario
    assert scenario.training.backward
    assert scenario.training.recompute == "full"
    assert scenario.schedule is None, "whole layers run all forwards first by themselves"
    assert made(tmp_path).scenario.schedule == ("F0", "F1", "B0", "B1")
    del first, second


def test_microbatch_by_microbatch_is_a_schedule_at_level_model_only(tmp_path):
    job = Job(folder=tmp_path)
    for number in range(2):
        job.forward((64,))
        job.recorder._backward(number, None)
    assert made(tmp_path).scenario.schedule is None
    assert made(tmp_path, level="model").scenario.schedule == ("F0", "B0", "F1", "B1")


def test_history_and_until_cut(tmp_path):
    job = Job(folder=tmp_path)
    for lengths in ((64,), (32,), (16,), (8,)):
        job.forward(lengths)
    cut = made(tmp_path, until=2, history=2).scenario
    assert [one.sequences for one in cut.microbatches] == [(32,), (16,)]
    with pytest.raises(CaptureError, match="from 0 to 3, found 9"):
        made(tmp_path, until=9)


def test_fewer_ranks_keep_the_sequences_and_say_what_is_lost(tmp_path):
    job = Job(folder=tmp_path, cp_size=8)
    job.forward((128, 60))
    small = made(tmp_path, ranks=2)
    assert small.scenario.num_ranks == 2
    assert small.scenario.microbatches[0].sequences == (128, 60)
    # 60 is padded to a multiple of 16 in the job, which CP 2 would not do by itself.
    assert small.scenario.microbatches[0].padded == (128, 64)
    assert any("chunks are 4 times as long" in note for note in small.notes)
    assert not any("scaled" in note for note in made(tmp_path, ranks=8).notes)


def test_dynamic_sizes_are_scaled_alike(tmp_path):
    job = Job(folder=tmp_path, cp_size=8)
    job.forward((64,), cp_size=1)
    job.forward((64,), cp_size=4)
    job.forward((64,))
    scenario = made(tmp_path, ranks=4).scenario
    assert scenario.parallel.context_parallel_size == 4
    assert [one.cp for one in scenario.microbatches] == [1, 2, None]


def test_lengths_that_did_not_land_come_from_a_rank_of_the_group(tmp_path):
    for rank in (0, 1):
        Job(folder=tmp_path, rank=rank, cp_rank=rank, cp_size=2).forward((64, 32))
    path = next(tmp_path.glob("rank00000*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["e"] == "microbatch":
            values = line["values"]
            line["states"] = dict.fromkeys(values, "pending")
            line["values"] = {}
            line["cp"]["ranks"] = [0, 1]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = made(tmp_path, rank=0)
    assert found.scenario.microbatches[0].sequences == (64, 32)
    assert any("taken from rank 1" in note for note in found.notes)
    next(tmp_path.glob("rank00001*.jsonl")).unlink()
    with pytest.raises(CaptureError, match="cu_seqlens_q, found not landed on every rank"):
        made(tmp_path, rank=0)


def test_rows_that_are_too_few_for_the_pack_are_pointed_out(tmp_path):
    job = Job(folder=tmp_path, cp_size=4)
    params, _rows = packed((64,), 4)
    job.recorder.enter(job.module(1), job.given(params, 10))
    assert any("are fewer than the padded total 64" in note for note in made(tmp_path).notes)


def test_boundaries_that_fall_are_refused(tmp_path):
    import torch

    job = Job(folder=tmp_path)
    params, rows = packed((64,), 4)
    params.cu_seqlens_q = torch.tensor([0, 64, 32], dtype=torch.int32)
    job.recorder.enter(job.module(1), job.given(params, rows))
    with pytest.raises(CaptureError, match="to rise from 0"):
        made(tmp_path)


@pytest.mark.parametrize("release", ["1.26.0", "1.32.0"])
def test_the_public_case_at_cp_32_becomes_a_scorer_scenario_and_a_signature(tmp_path, release):
    pr14_capture(tmp_path / "capture", cudnn_frontend=release)
    out, sign = tmp_path / "case.yaml", tmp_path / "signature.json"
    arguments = ["capture", "to-scenario", str(tmp_path / "capture"), "--out", str(out)]
    done = CliRunner().invoke(cli, [*arguments, "--signature", str(sign)])
    assert done.exit_code == 0, done.output
    result = load([out])
    assert result.ok, result.problems
    scenario = result.scenarios[0].scenario
    assert scenario.level == "scorer"
    assert scenario.parallel.context_parallel_size == 32
    assert scenario.parallel.cp_ranks == (31,)
    assert [one.sequences for one in scenario.microbatches] == [(65536, 65536)]
    assert scenario.kernels.dsa_kernel_backend == "cudnn"
    assert scenario.kernels.modelled.cudnn_frontend == release
    assert scenario.model.dsa_indexer_topk == 2048
    assert scenario.reference.rows == 256
    signature = loads(Signature, sign.read_text())
    assert signature == Signature(verdict=Verdict.MEMORY_FAULT, kernel="indexer_top_k_wrapper")


def test_the_kernel_of_an_error_that_may_be_late_is_left_open(tmp_path):
    from recorded_jobs import raised_in_kernel

    from harness.repro.capture_ends import chosen_end, signature_from

    job = Job(folder=tmp_path)
    job.fault((64,), raised_in_kernel(RuntimeError("an illegal memory access was encountered")))
    capture = read_capture(tmp_path)
    signature = signature_from(capture, chosen_end(capture))
    assert signature == Signature(verdict=Verdict.MEMORY_FAULT)


def test_a_clean_end_has_no_signature(tmp_path):
    job = Job(folder=tmp_path)
    job.forward((64,))
    job.recorder.close()
    done = CliRunner().invoke(
        cli, ["capture", "to-scenario", str(tmp_path), "--signature", str(tmp_path / "s")]
    )
    assert done.exit_code == 2
    assert "shows no fault" in done.output


def test_a_folder_that_is_no_capture_is_one_line(tmp_path):
    done = CliRunner().invoke(cli, ["capture", "show", str(tmp_path)])
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 1


def test_the_folder_for_the_job_is_printed():
    done = CliRunner().invoke(cli, ["capture", "path"])
    assert done.output.strip().endswith("harness/repro/job")
