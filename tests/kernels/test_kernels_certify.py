"""The comparison between models and kernels, with models in the place of the device."""

from types import SimpleNamespace

import pytest
import torch

from harness.kernels import DEFECTS, RELEASES
from harness.kernels.certify import kernel_cases, run_case
from harness.kernels.certify.case import to_device
from harness.kernels.certify.cells import Cell, compare
from harness.kernels.certify.stand_in import StandIn, modelled, standing_in
from harness.record.certificate import CaseState

FAST = (
    "*/arguments/*",
    "*/ids/*",
    "*/heads/*",
    "*/thd/*",
    "*/offsets/*",
    "*/special/*",
    "*/ties/*",
)
PAIRS = [("1.24.0", "sm100"), ("1.26.0", "sm90"), ("1.32.0", "sm90"), ("1.32.0", "sm100")]


def held(case, model, kernels):
    return run_case(case, modelled(model), kernels, device="cpu", synchronize=lambda: None)


def told(cases):
    return [(case.name, case.state, case.differences, case.reason) for case in cases]


@pytest.mark.parametrize(("release", "arch"), PAIRS)
def test_a_model_agrees_with_itself_under_another_seed(release, arch):
    model = StandIn(cudnn_frontend=release, arch=arch)
    found = [
        held(case, model, standing_in(model, case.name))
        for case in kernel_cases(release, arch, only=FAST)
    ]
    assert len(found) > 30
    assert [case for case in told(found) if case[1] is not CaseState.AGREES] == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("release", RELEASES)
def test_every_case_agrees_with_itself(release, arch):
    model = StandIn(cudnn_frontend=release, arch=arch)
    chosen = [case for case in kernel_cases(release, arch) if case.repeats == 1]
    found = [held(case, model, standing_in(model, case.name)) for case in chosen]
    assert [case for case in told(found) if case[1] is not CaseState.AGREES] == []


DEFECT_CASES = {
    ("1.26.0", "sm100", "d446"): "indexer_top_k/d446/8x300_10*",
    ("1.26.0", "sm100", "d406"): "indexer_top_k/d406/top513",
    ("1.32.0", "sm90", "mask_leak"): "indexer_forward/mask_leak/offset6[12]",
    ("1.32.0", "sm100", "short_max_k"): "indexer_forward/short_max_k/*",
    ("1.32.0", "sm90", "short_max_q"): "indexer_forward/short_max_q/*",
    ("1.26.0", "sm100", "d550"): "indexer_backward/d550/40",
    ("1.26.0", "sm100", "unzeroed_dk"): "indexer_backward/filled_dk",
    ("1.25.0", "sm100", "d317"): "sparse_attn_score_recompute/d317/*",
    ("1.32.0", "sm100", "d1549"): "sparse_attn_score_recompute/d1549/*",
    ("1.30.0", "sm100", "slot_arithmetic"): "*/slot_arithmetic/3_blocks",
    ("1.32.0", "sm90", "single_row"): "*/single_row",
    ("1.26.0", "sm90", "d384"): "sparse_attention_backward/heads/32",
    ("1.26.0", "sm100", "d433"): "sparse_attention_backward/length/0",
    ("1.25.0", "sm100", "d298"): "*/ids_behind_the_keys",
}
"""Release, architecture and defect to a case that tells whether a kernel has the defect."""


@pytest.mark.parametrize("known", DEFECT_CASES, ids="-".join)
def test_a_kernel_without_the_defect_differs(known):
    release, arch, defect = known
    released = RELEASES[release].defects[arch]
    assert defect in released
    model = StandIn(cudnn_frontend=release, arch=arch)
    fixed = StandIn(cudnn_frontend=release, arch=arch, defects=tuple(released - {defect}))
    (case, *_) = kernel_cases(release, arch, only=[DEFECT_CASES[known]])
    assert held(case, model, standing_in(fixed, case.name)).state in (
        CaseState.DIFFERS,
        CaseState.NOT_SHOWN,
    )
    assert held(case, model, standing_in(model, case.name)).state is CaseState.AGREES


def test_what_is_only_deduced_has_a_case_of_its_own():
    deduced = {name for name, defect in DEFECTS.items() if defect.basis == "deduced"}
    for arch in ("sm90", "sm100"):
        rules = {case.rule for case in kernel_cases("1.30.0", arch) if case.basis == "deduced"}
        assert deduced <= rules
        assert {"32-byte alignment", "padded view", "scratch race"} <= rules


def test_names_are_unique_and_deduced_cases_come_last():
    cases = kernel_cases("1.32.0", "sm100")
    assert len({case.name for case in cases}) == len(cases)
    bases = [case.basis for case in cases]
    assert bases == sorted(bases, key=["contract", "read", "reported", "deduced"].index) or (
        bases.index("deduced") == len(bases) - bases.count("deduced")
    )


@pytest.mark.parametrize("plant", ["cell", "raise"])
def test_one_wrong_cell_is_one_difference(plant):
    name = "indexer_top_k/arguments/misaligned_base"
    wrong = StandIn(cudnn_frontend="1.32.0", arch="sm90", plant=plant, at=name)
    model = StandIn(cudnn_frontend="1.32.0", arch="sm90")
    cases = kernel_cases("1.32.0", "sm90", only=["indexer_top_k/arguments/*"])
    found = [held(case, model, standing_in(wrong, case.name)) for case in cases]
    (differing,) = [case for case in found if case.state is CaseState.DIFFERS]
    assert differing.name == name
    assert differing.differences


def test_an_address_that_shows_no_fault_proves_nothing():
    model = StandIn(cudnn_frontend="1.26.0", arch="sm90")
    fixed = StandIn(cudnn_frontend="1.26.0", arch="sm90", defects="none")
    (case,) = kernel_cases("1.26.0", "sm90", only=["*/ids/-2147483648/with_length"])[-1:]
    found = held(case, model, standing_in(fixed, case.name))
    assert found.state is CaseState.NOT_SHOWN
    assert "proves nothing" in found.reason


def test_a_lost_context_behind_another_error_is_a_fault_of_that_call():
    def refuse(**arguments):
        raise RuntimeError("launch failed")

    def lost():
        raise torch.AcceleratorError("an illegal memory access was encountered")

    (case,) = kernel_cases("1.32.0", "sm90", only=["indexer_forward/limits/ratio1/6x40"])
    model = modelled(StandIn(cudnn_frontend="1.32.0", arch="sm90"))
    kernels = SimpleNamespace(indexer_forward_wrapper=refuse)
    found = run_case(case, model, kernels, device="cpu", synchronize=lambda: None)
    assert found.kernel == "raised RuntimeError"
    with pytest.raises(torch.AcceleratorError):
        run_case(case, model, kernels, device="cpu", synchronize=lost)


def test_without_flash_mla_its_cases_are_not_compared():
    model = StandIn(cudnn_frontend="1.32.0", arch="sm90")
    (case, *_) = kernel_cases("1.32.0", "sm90", only=["flash_mla/*"])
    found = held(case, model, object())
    assert found.state is CaseState.NOT_COMPARED
    assert "flash_mla" in found.reason


def test_copies_keep_strides_and_offset():
    whole = torch.arange(20.0)
    view = whole[3:19].view(4, 4).t()
    copy = to_device(view, "cpu")
    assert copy.stride() == view.stride()
    assert copy.storage_offset() == 3
    assert torch.equal(copy, view)
    assert copy.data_ptr() != view.data_ptr()


@pytest.mark.parametrize(
    ("model", "kernel", "differs"),
    [
        (1.0, 1.0, False),
        (1.0, 1.05, False),
        (1.0, 1.2, True),
        (float("nan"), float("nan"), False),
        (float("nan"), 1.0, True),
        (float("inf"), float("inf"), False),
        (float("inf"), 3e38, True),
        (-float("inf"), float("inf"), True),
    ],
)
def test_cells_are_compared_within_the_model_tolerance(model, kernel, differs):
    found = compare(
        {"x": Cell(value=torch.tensor([0.0, model]), atol=0.1)},
        {"x": Cell(value=torch.tensor([0.0, kernel]))},
    )
    assert bool(found) == differs
    if found:
        assert found[0].first == (1,)


def test_shapes_words_and_missing_cells_differ():
    model = {"a": Cell(value=torch.zeros(2)), "b": Cell(value="none"), "c": Cell(value="x")}
    kernel = {"a": Cell(value=torch.zeros(3)), "b": Cell(value="some")}
    assert [item.cell for item in compare(model, kernel)] == ["a", "b", "c"]
