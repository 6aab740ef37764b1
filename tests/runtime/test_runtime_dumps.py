"""Inputs of wrong selections on disk: when, how much, and that they give the verdict again."""

import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from run_session import Session

from harness.evidence.observation import ScorerObservation
from harness.record.verdict import Verdict
from harness.runtime import dumps
from harness.runtime.dumps import cut_to
from harness.scenario.spec import KnownRule
from reports.store import load_run

HARDWARE = {"source": "hardware", "arch": "sm100", "cudnn_frontend": "1.32.0"}
RULE = KnownRule(when={"arch": "sm100"}, verdict=Verdict.WRONG_SELECTION, behaviour="x", link="l")


@pytest.fixture
def observation():
    torch.manual_seed(0)
    return ScorerObservation(
        call=None,
        fused=True,
        q=torch.randn(1, 8, 4, 16),
        k=torch.randn(1, 32, 16),
        weights=torch.randn(1, 8, 4),
        picks=torch.arange(8 * 6).view(1, 8, 6),
    )


def _bytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors.values())


def test_all_of_it_is_kept_where_it_fits(observation):
    kept = cut_to(1 << 20, observation, [3])
    assert set(kept) == {"q", "k", "w", "picks"}
    assert torch.equal(kept["q"], observation.q)
    assert cut_to(_bytes(kept), observation, [3]).keys() == kept.keys()


def test_else_the_keys_and_the_worst_rows(observation):
    whole = _bytes(cut_to(1 << 20, observation, []))
    kept = cut_to(whole - 1, observation, [5, 2, 5])
    assert kept["rows"].tolist() == [2, 5]
    assert torch.equal(kept["q"], observation.q[:, [2, 5]])
    assert torch.equal(kept["picks"], observation.picks[:, [2, 5]])
    assert torch.equal(kept["k"], observation.k)
    assert _bytes(kept) < whole


def test_or_nothing(observation):
    keys = observation.k.numel() * 4
    assert cut_to(keys, observation, [5]) is None
    assert cut_to(10, observation, [5]) is None


@pytest.mark.parametrize(
    ("facts", "known", "verdict", "asked"),
    [
        (HARDWARE, (), Verdict.PASS, True),
        (HARDWARE | {"source": "modelled"}, (), Verdict.PASS, False),
        (HARDWARE | {"source": "none"}, (), Verdict.PASS, False),
        (HARDWARE, (RULE,), Verdict.PASS, False),
        (HARDWARE | {"arch": "sm90"}, (RULE,), Verdict.PASS, True),
        (HARDWARE, (replace(RULE, verdict=Verdict.CRASH),), Verdict.PASS, True),
        (HARDWARE, (), Verdict.WRONG_SELECTION, False),
    ],
)
def test_only_what_nobody_expects_on_hardware(make_scenario, facts, known, verdict, asked):
    scenario = make_scenario("a", known=known)
    scenario = replace(scenario, expect=replace(scenario.expect, verdict=verdict))
    assert dumps._asks(scenario, facts) is asked


def test_a_disk_that_refuses_is_a_note(tmp_path, observation, make_scenario, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dumps.torch, "save", refuse)
    item = SimpleNamespace(cp_rank=0, microbatch=0, layer=1, seed=0, worst_rows=())
    task = SimpleNamespace(
        folder=str(tmp_path / "ranks/a/1"),
        scenario=make_scenario("a"),
        attempt=1,
        global_rank=0,
        dump_bytes=1 << 20,
    )
    stage = SimpleNamespace(task=task, facts={}, source=SimpleNamespace(kernels={}))
    monkeypatch.setattr(dumps, "dumps", lambda about: "")
    note = dumps._dump(stage, None, observation, item)
    assert "not written: [Errno 28] No space left on device" in note.text
    task.dump_bytes = 100
    assert "raise --dump-bytes" in dumps._dump(stage, None, observation, item).text


SCENARIO = """\
id: dump/masked
summary: The released mask drops keys.
model: small
level: scorer
kernels: {dsa_kernel_backend: cudnn, source: modelled, modelled: {cudnn_frontend: "1.32.0"}}
parallel: {context_parallel_size: 2}
microbatches: [{sequences: [128]}]
values: {seeds: [0, 1]}
"""


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(600)
def test_a_modelled_run_dumps_when_it_is_told_to(tmp_path):
    session = Session(tmp_path)
    (tmp_path / "a.yaml").write_text(SCENARIO)
    try:
        words = ("run", "--ranks", "1", "a.yaml", "--dump-all", "--dump-bytes", "1200000")
        code, output = session.finish(session.command(*words))
    finally:
        for pid in session.processes():
            os.kill(pid, signal.SIGKILL)
    assert code == 1, output
    run = session.run_folder()
    (result,) = load_run(run).results
    notes = [note.text for note in result.last.notes if note.topic == dumps.TOPIC]
    files = sorted((run / "dumps").iterdir())
    assert len(notes) == 4, "two logical ranks, two seeds"
    assert sum("left out" in note for note in notes) == 4 - len(files)
    assert 2 <= len(files) < 4, "the budget is one for all"
    assert sum(path.stat().st_size for path in files) < 1_300_000
    kept = torch.load(files[0], weights_only=True)
    about = json.loads(kept["about"])
    assert about["scenario"]["id"] == "dump/masked"
    assert about["evidence"]["total"]["below"] > 0
    # The scores of what was kept show the wrong picks again.
    q, k, w = (kept[name].float() for name in ("q", "k", "w"))
    scores = (torch.einsum("brhd,bkd->brhk", q, k).relu() * w[..., None]).sum(dim=2)
    row = about["evidence"]["worst_rows"][0]
    place = row["row"] if "rows" not in kept else kept["rows"].tolist().index(row["row"])
    visible = scores[0, place, : row["limit"]]
    picked = kept["picks"][0, place]
    picked = picked[(picked >= 0) & (picked < row["limit"])]
    due = visible.topk(min(16, row["limit"])).values.min()
    assert (visible[picked] < due).any() or len(picked) < 16
