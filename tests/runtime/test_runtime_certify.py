"""Certificates through processes that may be lost: hangs, crashes and what goes on behind them."""

import dataclasses

import pytest

from harness.kernels.certificates import certificate_name, certified_text
from harness.kernels.certify.stand_in import StandIn
from harness.record.certificate import (
    NEVER,
    CaseState,
    CellDifference,
    Certificate,
    CertifiedCase,
)
from harness.record.files import write_record
from harness.runtime.certify import CertifyError, certify
from harness.runtime.certify_request import CertifyRequest

ONLY = ("indexer_top_k/arguments/*",)
AT = "indexer_top_k/arguments/misaligned_base"


def request(plant=None):
    other = StandIn(cudnn_frontend="1.32.0", arch="sm90", plant=plant, at=AT)
    return CertifyRequest(cudnn_frontend="1.32.0", arch="sm90", only=ONLY, stand_in=other)


@pytest.mark.parametrize(
    ("plant", "kernel"), [("hang", "hang"), ("crash", "process ended by signal SIGSEGV")]
)
def test_a_lost_process_is_the_answer_of_one_case(plant, kernel):
    told = []
    found, device = certify(
        request(plant), on_case=lambda case, number, total: told.append(number), case_s=8.0
    )
    assert told == list(range(1, len(found) + 1))
    by_name = {case.name: case for case in found}
    lost = by_name.pop(AT)
    assert (lost.state, lost.model, lost.kernel) == (CaseState.DIFFERS, "returned", kernel)
    assert lost.differences[0].kernel == kernel
    assert {case.state for case in by_name.values()} == {CaseState.AGREES}
    assert device.device == "none"


def test_patterns_that_fit_nothing_are_named():
    with pytest.raises(CertifyError, match="nothing_like_it"):
        certify(dataclasses.replace(request(), only=("nothing_like_it",)))


def certificate(**changes):
    case = CertifiedCase(
        name="a/b", wrapper="a", basis="contract", rule="b", state=CaseState.AGREES,
        model="returned", kernel="returned",
    )  # fmt: skip
    standard = {
        "cudnn_frontend": "1.32.0",
        "arch": "sm90",
        "capability": "9.0",
        "device": "H200",
        "date": "2026-01-02T03:04:05+00:00",
        "complete": True,
        "cases": (case,),
    }
    return Certificate(**{**standard, **changes})


def stored(folder, item, release="1.32.0", arch="sm90"):
    write_record(folder / certificate_name(release, arch), item)
    return certified_text(release, arch, folder)


def test_a_certificate_says_when_and_how_much(tmp_path):
    assert stored(tmp_path, certificate()) == "certified sm90, 2026-01-02: 1 cases, no difference"


@pytest.mark.parametrize(
    "changes",
    [
        {"cudnn_frontend": "1.31.0"},
        {"arch": "sm100"},
        {"stand_in": "1.32.0@sm90"},
        {"complete": False},
    ],
)
def test_a_certificate_for_something_else_certifies_nothing(tmp_path, changes):
    assert stored(tmp_path, certificate(**changes)) == NEVER


def test_without_a_readable_file_nothing_is_certified(tmp_path):
    assert certified_text("1.32.0", "sm90", tmp_path) == NEVER
    (tmp_path / certificate_name("1.32.0", "sm90")).write_text("{")
    assert certified_text("1.32.0", "sm90", tmp_path).startswith(NEVER)


def test_differences_are_told(tmp_path):
    case = CertifiedCase(
        name="a/b", wrapper="a", basis="contract", rule="b", state=CaseState.DIFFERS,
        model="returned", kernel="returned",
        differences=(CellDifference(cell="x", model="1", kernel="2"),),
    )  # fmt: skip
    assert stored(tmp_path, certificate(cases=(case,))).endswith("1 cases, 1 differ")


def test_a_case_that_differs_in_nothing_is_refused():
    case = certificate().cases[0]
    with pytest.raises(ValueError, match="does not go with"):
        dataclasses.replace(case, state=CaseState.DIFFERS)
