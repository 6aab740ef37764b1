"""Warm ranks with real processes, and searching and minimising over them."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.record.verdict import Outcome, Verdict
from harness.repro.minimise import Minimiser
from harness.repro.search import Search
from harness.repro.signature import Signature, signature_of
from harness.runtime.options import Options, UsageError
from harness.runtime.processes import session_members
from harness.runtime.warm import WarmRanks
from harness.scenario.files import PROJECT_ROOT
from harness.scenario.loader import load
from harness.scenario.model_files import ModelLibrary
from harness.scenario.spec import (
    KernelsSpec,
    MicrobatchSpec,
    ModelledKernels,
    ParallelSpec,
    Scenario,
)

pytestmark = [pytest.mark.ranks]


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


@pytest.fixture(scope="module")
def warm():
    before = environment()
    with WarmRanks(2, keep=lambda result: result.outcome is Outcome.UNEXPECTED) as ranks:
        yield ranks
        folder = ranks.folder.path
    assert environment() == before
    assert not folder.exists()


def scenario(**changes):
    model = replace(ModelLibrary().get("small"), hidden_size=64, num_attention_heads=4)
    given = {
        "id": "warm/case",
        "summary": "A small case.",
        "model": replace(model, dsa_indexer_n_heads=8),
        "parallel": ParallelSpec(context_parallel_size=2),
        "microbatches": (MicrobatchSpec(sequences=(24, 0, 9)),),
    }
    return Scenario(**{**given, **changes})


def released(release, **changes):
    kernels = KernelsSpec(
        dsa_kernel_backend="cudnn",
        source="modelled",
        modelled=ModelledKernels(cudnn_frontend=release),
    )
    return scenario(model=ModelLibrary().get("small"), kernels=kernels, **changes)


def pids(result):
    return [rank.pid for rank in result.last.ranks]


def test_processes_stay_until_they_are_asked_for_alone(warm):
    first, second = warm.evaluate(scenario()), warm.evaluate(scenario())
    assert (first.verdict, second.outcome) == (Verdict.PASS, Outcome.EXPECTED)
    assert pids(first) == pids(second)
    alone = warm.evaluate(scenario(), alone=True)
    assert alone.verdict is Verdict.PASS and not set(pids(alone)) & set(pids(first))
    assert session_members(pids(first)) == ()
    assert not list((warm.folder.path / "ranks").glob("*/*")), "files of a pass were kept"


def test_a_fault_retires_the_processes_and_keeps_its_files(warm):
    healthy = warm.evaluate(scenario())
    faulty = warm.evaluate(scenario(inject=("sigsegv@1:gather",)))
    assert (faulty.verdict, faulty.outcome) == (Verdict.CRASH, Outcome.UNEXPECTED)
    assert signature_of(faulty).exception == "SIGSEGV"
    assert list((warm.folder.path / "ranks").glob("*/*/rank1.stacks"))
    after = warm.evaluate(scenario())
    assert after.verdict is Verdict.PASS and not set(pids(after)) & set(pids(healthy))


def test_other_numbers_of_ranks_have_processes_of_their_own(warm):
    two = warm.evaluate(scenario())
    one = warm.evaluate(scenario(parallel=ParallelSpec(context_parallel_size=1)))
    again = warm.evaluate(scenario())
    assert one.verdict is Verdict.PASS and len(one.last.ranks) == 1
    assert pids(two) == pids(again) and not set(pids(one)) & set(pids(two))
    with pytest.raises(UsageError, match="needs 4 ranks"):
        warm.evaluate(scenario(parallel=ParallelSpec(context_parallel_size=4)))


def test_the_released_defect_is_found_and_its_case_reruns_alone(warm):
    base = released("1.32.0", microbatches=(MicrobatchSpec(sequences=(64, 32)),))
    report = Search(bases=(base,), evaluator=warm, budget_s=120.0).run()
    assert report.ending == "found" and report.found.alone
    wanted = Signature(verdict=Verdict.WRONG_SELECTION, behaviour="chunk_local_window")
    assert wanted.matches(report.found.signature)
    assert wanted.matches(signature_of(warm.evaluate(report.found.scenario, alone=True)))


def test_shipped_search_scenarios_draw_histories_that_pass(warm):
    bases = [item.scenario for item in load([PROJECT_ROOT / "scenarios" / "search"]).scenarios]
    bases = [base for base in bases if base.num_ranks <= 2]
    report = Search(bases=bases, evaluator=warm, budget_s=240.0, most=8).run()
    assert report.counts == {"expected pass": 8}, report.found


def test_a_case_is_made_smaller_over_real_ranks(warm):
    packs = (MicrobatchSpec(sequences=(128, 64)), MicrobatchSpec(sequences=(96,)))
    parallel = ParallelSpec(context_parallel_size=8, cp_ranks=(3, 7))
    large = released("1.32.0", level="scorer", parallel=parallel, microbatches=packs)
    report = Minimiser(scenario=large, evaluator=warm, budget_s=240.0, most=20).run()
    small = report.scenario
    assert report.alone and report.signature.behaviour == "chunk_local_window"
    assert len(small.microbatches) == 1 and len(small.microbatches[0].sequences) == 1
    assert report.signature.matches(signature_of(warm.evaluate(small, alone=True)))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        ("1.26.0", Signature(verdict=Verdict.MEMORY_FAULT, kernel="indexer_top_k_wrapper")),
        ("1.32.0", Signature(verdict=Verdict.WRONG_SELECTION, behaviour="chunk_local_window")),
    ],
)
def test_a_case_of_131072_tokens_becomes_one_of_a_few(warm, release, wanted):
    large = released(
        release,
        level="scorer",
        parallel=ParallelSpec(context_parallel_size=32, cp_ranks=(31,)),
        microbatches=(MicrobatchSpec(sequences=(65536, 65536)),),
    )
    large = replace(large, model=ModelLibrary().get("glm5_2"))
    report = Minimiser(scenario=large, evaluator=warm, wanted=wanted, budget_s=600.0).run()
    small = report.scenario
    assert report.ending == "smallest" and report.alone
    assert wanted.matches(signature_of(report.result))
    assert small.parallel.context_parallel_size <= 2 and len(report.result.last.ranks) == 1
    ((tokens,),) = [pack.sequences for pack in small.microbatches]
    assert tokens <= 16


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_layout_that_poisons_the_next_microbatch_needs_two():
    packs = ((40, 24), (16, 30, 7), (64,), (9, 9))
    large = scenario(microbatches=tuple(MicrobatchSpec(sequences=pack) for pack in packs))
    with WarmRanks(2, options=Options(engine="poisoned_engine:execute")) as poisoned:
        report = Minimiser(scenario=large, evaluator=poisoned, budget_s=600.0).run()
        assert report.ending == "smallest" and report.alone
        assert report.signature.verdict not in (Verdict.PASS, Verdict.HARNESS_ERROR)
        assert len(report.scenario.microbatches) == 2
        for pack in report.scenario.microbatches:
            single = replace(report.scenario, microbatches=(pack,))
            assert poisoned.evaluate(single, alone=True).verdict is Verdict.PASS


def test_ctrl_c_ends_a_search_with_its_report(tmp_path):
    case = PROJECT_ROOT / "scenarios" / "search" / "unfused.yaml"
    words = ["search", str(case), "--budget", "5m", "--out", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "launch.cli", *words],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert "2 ranks, seed 0" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "ended: a signal" in told
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "search.json").read_text())["ending"] == "stopped"


def threads_of_ranks(warm):
    """Threads of each process that the forkserver of warm ranks started."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stream:
                    parent = int(stream.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
            except (OSError, ValueError):
                continue
    servers = children.get(os.getpid(), [])
    ranks = [pid for server in servers for pid in children.get(server, [])]
    return [len(os.listdir(f"/proc/{pid}/task")) for pid in ranks]


def test_groups_of_cases_do_not_add_up_in_their_processes(warm):
    """Each case makes groups with threads of their own, which end with it.

    One group of a case may stay until a cache of bounded size lets it go: three threads.
    """
    cases = [scenario(microbatches=(MicrobatchSpec(sequences=(8 + n,)),)) for n in range(8)]
    for case in cases[:2]:
        assert warm.evaluate(case).verdict is Verdict.PASS
    before = threads_of_ranks(warm)
    assert before, "the rank processes are found"
    for case in cases[2:]:
        assert warm.evaluate(case).verdict is Verdict.PASS
    assert max(threads_of_ranks(warm)) <= max(before) + 4 * len(cases[2:])
