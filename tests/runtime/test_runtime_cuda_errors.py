"""CUDA errors out of exceptions, what they make of a verdict, and the probe between phases."""

from dataclasses import replace

import pytest

from harness.record.evidence import ExceptionEvidence
from harness.record.phase import Phase
from harness.record.result import RankOutcome
from harness.record.verdict import Verdict
from harness.runtime import child
from harness.runtime.blame import exception_evidence
from harness.runtime.cuda_errors import ContextProbe, cuda_error_code
from harness.runtime.first_fault import first_fault
from harness.runtime.journal import Journal, read_journal

ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAdd"


class AcceleratorError(RuntimeError):
    """As torch's: the code is an attribute."""

    def __init__(self, text, error_code=None):
        super().__init__(text)
        if error_code is not None:
            self.error_code = error_code


class OtherLibraryError(Exception):
    error_code = 700


def _caused_by(cause):
    error = ValueError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AcceleratorError("any text", 716), 716),
        (AcceleratorError(ILLEGAL), 700),
        (RuntimeError(ILLEGAL), 700),
        (RuntimeError("CUDA error: misaligned address"), 716),
        (RuntimeError("CUDA error: unspecified launch failure"), 719),
        (RuntimeError("CUDA error: device-side assert triggered"), 710),
        (_caused_by(RuntimeError(ILLEGAL)), 700),
        (RuntimeError("CUDA error: something new"), None),
        (RuntimeError("it said: CUDA error: misaligned address"), None),
        (RuntimeError("an illegal memory access was encountered"), None),
        (ValueError(ILLEGAL), None),
        (OtherLibraryError("x"), None),
        (AcceleratorError("x", True), None),
    ],
)
def test_codes_come_from_types_and_cuda_s_own_texts(error, code):
    assert cuda_error_code(error) == code
    assert exception_evidence(error).cuda_error == code


def test_a_circle_of_causes_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert cuda_error_code(first) is None


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (700, Verdict.MEMORY_FAULT),
        (714, Verdict.MEMORY_FAULT),
        (719, Verdict.MEMORY_FAULT),
        (701, Verdict.HARNESS_ERROR),
        (702, Verdict.CRASH),
        (710, Verdict.CRASH),
        (214, Verdict.INFRASTRUCTURE),
        (2, Verdict.OUT_OF_MEMORY),
        (1, Verdict.HARNESS_ERROR),
        (None, Verdict.HARNESS_ERROR),
    ],
)
def test_a_sticky_error_is_the_build_s_even_where_the_harness_finds_it(code, verdict):
    found = exception_evidence(AcceleratorError("x", code))
    assert found.origin == "harness"
    rank = RankOutcome(global_rank=0, exit_code=1, last_phase=Phase.SCORE, exception=found)
    assert first_fault([rank]).verdict is verdict
    assert isinstance(found, ExceptionEvidence)


class FakeCuda:
    """Stands for torch.cuda: an error that waits on the device."""

    def __init__(self, error=None, *, initialized=True, capturing=False):
        self.error = error
        self.initialized = initialized
        self.capturing = capturing

    def is_initialized(self):
        return self.initialized

    def is_current_stream_capturing(self):
        return self.capturing

    def synchronize(self):
        assert self.initialized and not self.capturing
        if self.error is not None:
            raise self.error


@pytest.fixture
def probed(tmp_path):
    """Go from score to compare with a probe; return the probe and what the journal says."""

    def go(cuda):
        journal = Journal(tmp_path / "j", global_rank=0)
        probe = ContextProbe(cuda)
        journal.leaving.append(probe)
        raised = None
        try:
            journal.phase(Phase.SCORE)
            journal.phase(Phase.COMPARE)
        except RuntimeError as error:
            raised = error
        journal.close()
        return probe, raised, read_journal(tmp_path / "j", global_rank=0).last_phase

    return go


def test_an_error_is_found_in_the_phase_that_caused_it(probed):
    error = AcceleratorError(ILLEGAL, 700)
    probe, raised, last = probed(FakeCuda(error))
    assert (raised, last, probe.num_waits) == (error, Phase.SCORE, 1)


def test_a_healthy_device_goes_on(probed):
    probe, raised, last = probed(FakeCuda())
    assert (raised, last, probe.num_waits) == (None, Phase.COMPARE, 1)


@pytest.mark.parametrize("state", [{"initialized": False}, {"capturing": True}])
def test_without_a_context_and_during_capture_nothing_is_asked(probed, state):
    probe, raised, last = probed(FakeCuda(AcceleratorError(ILLEGAL, 700), **state))
    assert (raised, last, probe.num_waits) == (None, Phase.COMPARE, 0)


def test_torch_has_what_the_probe_asks_for():
    import torch

    assert callable(torch.cuda.is_initialized) and callable(torch.cuda.synchronize)
    assert callable(torch.cuda.is_current_stream_capturing)
    assert issubclass(torch.AcceleratorError, RuntimeError)


@pytest.mark.parametrize(
    ("device", "bare", "count"), [("cuda", False, 1), ("cuda", True, 0), ("cpu", False, 0)]
)
def test_ranks_on_a_gpu_are_probed_unless_the_run_is_bare(
    make_places, make_planned, tmp_path, device, bare, count
):
    item = replace(make_planned(ranks=1), device=device)
    task = make_places(bare=bare).tasks(item, 1, "scenario")[0]
    journal = Journal(tmp_path / "j", global_rank=0)
    child._watch_device(task, journal)
    journal.close()
    assert [type(look) for look in journal.leaving] == [ContextProbe] * count
