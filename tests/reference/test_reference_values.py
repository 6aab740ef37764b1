"""Value comparison beside ``torch.testing.assert_close``, and tolerance files."""

from __future__ import annotations

import math

import pytest
import torch

from harness.record.codec import dumps
from harness.reference import values
from harness.reference.expected import Expected, compare_expected, sum_partials
from harness.reference.site import Site
from harness.reference.tolerances import Tolerance, ToleranceError, load_tolerances
from harness.reference.values import compare_values

SITE = Site(global_rank=0, cp_rank=0)


def compare(actual, expected, atol=0.0, rtol=0.0, **options):
    return compare_values("out", actual, expected, atol=atol, rtol=rtol, reason="why", **options)


def assert_close_passes(actual, expected, atol, rtol):
    try:
        torch.testing.assert_close(actual.double(), expected.double(), atol=atol, rtol=rtol)
    except AssertionError:
        return False
    return True


SPECIAL = [
    (math.nan, math.nan),
    (math.nan, 1.0),
    (1.0, math.nan),
    (math.inf, math.inf),
    (-math.inf, math.inf),
    (math.inf, 1.0),
    (1.0, math.inf),
    (0.0, 0.0),
    (1e-3, 0.0),
]


@pytest.mark.parametrize(("actual", "expected"), SPECIAL)
def test_agrees_with_assert_close_on_special_values(actual, expected):
    found = compare(torch.tensor([actual]), torch.tensor([expected]), atol=1e-4, rtol=1e-4)
    assert found.within == assert_close_passes(
        torch.tensor([actual]), torch.tensor([expected]), 1e-4, 1e-4
    )


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
@pytest.mark.parametrize("atol", [0.0, 0.5, 2.0, 10.0])
def test_agrees_with_assert_close_and_numbers_do_not_depend_on_pieces(monkeypatch, piece, atol):
    monkeypatch.setattr(values, "_PIECE", piece)
    generator = torch.Generator().manual_seed(0)
    actual = torch.randn(4, 5, generator=generator)
    expected = torch.randn(4, 5, generator=generator)
    found = compare(actual, expected, atol=atol, rtol=0.1)
    diff = (actual.double() - expected.double()).abs()
    assert found.max_abs_diff == diff.max()
    assert found.max_rel_diff == (diff / expected.double().abs()).max()
    assert found.num_mismatched == int((diff > atol + 0.1 * expected.double().abs()).sum())
    assert found.within == assert_close_passes(actual, expected, atol, 0.1)
    if not found.within:
        flat = int(diff.argmax())
        assert f"at index ({flat // 5}, {flat % 5})" in found.message


@pytest.mark.parametrize(("actual", "within"), [(4.49, True), (4.51, False), (3.49, False)])
def test_relative_and_absolute_bounds_add_up(actual, within):
    found = compare(torch.tensor([actual]), torch.tensor([4.0]), atol=0.1, rtol=0.1)
    assert found.within == within


def test_message_names_value_number_index_and_bound():
    actual = torch.zeros(2, 3)
    actual[1, 2] = 0.5
    found = compare(actual, torch.zeros(2, 3), atol=0.25)
    assert found.message.splitlines() == [
        "out: 1 of 6 elements differ (16.7%)",
        "Greatest absolute difference: 0.5 at index (1, 2) (up to 0.25 allowed)",
        "Greatest relative difference: inf at index (1, 2) (up to 0 allowed)",
    ]


def test_a_wrong_shape_is_a_wrong_value():
    found = compare(torch.zeros(2, 3), torch.zeros(3, 2), atol=1.0)
    assert not found.within
    assert found.message == "out: shapes differ, found (2, 3), expected (3, 2)"
    assert found.max_abs_diff == math.inf


def test_scalars_and_empty_values():
    assert compare(torch.tensor(1.0), torch.tensor(1.0)).within
    found = compare(torch.tensor(1.0), torch.tensor(2.0))
    assert not found.within
    assert "at index ()" in found.message
    assert compare(torch.zeros(0, 3), torch.zeros(0, 3)).within


def test_evidence_has_the_numbers_and_the_reason():
    found = compare(torch.tensor([1.5]), torch.tensor([1.0]), atol=1.0, rtol=0.5, gradient=True)
    record = found.evidence(Site(global_rank=3, cp_rank=1, layer=2))
    assert (record.global_rank, record.cp_rank, record.layer, record.seed) == (3, 1, 2, 0)
    assert (record.name, record.gradient, record.within) == ("out", True, True)
    assert (record.max_abs_diff, record.max_rel_diff) == (0.5, 0.5)
    assert (record.tolerance_abs, record.tolerance_rel, record.reason) == (1.0, 0.5, "why")
    wrong = compare(torch.tensor([math.nan]), torch.tensor([1.0]))
    assert '"max_abs_diff": "inf"' in dumps(wrong.evidence(SITE))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bounds_that_allow_everything_are_refused(bad):
    with pytest.raises(ValueError, match="out: atol must be finite and at least 0"):
        compare(torch.zeros(1), torch.zeros(1), atol=bad)


def test_shipped_tolerances_catch_one_wrong_element():
    tolerances = load_tolerances()
    value = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    expected = Expected(value=value, scale=torch.ones(64, 1), length=16)
    for name, by_dtype in tolerances.entries.items():
        for dtype in by_dtype:
            for element, size in ((3, 5), 0.1), ((63, 63), -0.1):
                wrong = value.clone()
                wrong[element] += size
                common = {"dtype": dtype, "tolerances": tolerances}
                assert compare_expected(name, value, expected, **common).within
                found = compare_expected(name, wrong, expected, **common)
                assert found.num_mismatched == 1
                assert f"over its own bound: {found.max_bound_part:.6g} at index {element}" in (
                    found.message
                )


def test_a_bound_of_its_own_for_each_element():
    bounds = torch.tensor([[0.1, 1.0], [2.0, 0.5]])
    actual = torch.tensor([[0.0, 0.5], [1.0, 0.6]])
    found = compare(actual, torch.zeros(2, 2), atol=bounds)
    assert (found.num_mismatched, found.max_abs_diff) == (1, 1.0)
    assert found.atol == 0.5
    assert found.max_bound_part == pytest.approx(1.2)
    assert found.message.splitlines()[1:] == [
        "Greatest absolute difference: 1 at index (1, 0)",
        "Greatest relative difference: inf at index (0, 1) (up to 0 allowed)",
        "Greatest difference over its own bound: 1.2 at index (1, 1) (up to 0.5 absolute allowed "
        "there)",
    ]
    # A record of a failure never shows a difference below what it says was allowed.
    assert found.evidence(SITE).max_abs_diff > found.evidence(SITE).tolerance_abs
    assert compare(actual, torch.zeros(2, 2), atol=2 * bounds).within
    with pytest.raises(ValueError, match=r"out: atol must be finite and at least 0, found -0\.4"):
        compare(actual, torch.zeros(2, 2), atol=bounds - 0.5)


def test_bounds_of_scale_grow_with_terms_and_partial_sums():
    tolerance = Tolerance(
        of_scale=0.5, of_scale_sqrt_length=0.25, of_scale_sqrt_partials=2.0, reason="why"
    )
    expected = Expected(
        value=torch.tensor([[3.0, -1.0]]),
        scale=torch.tensor([[2.0]]),
        slack=torch.tensor([[0.125]]),
        length=16,
        partials=5,
    )
    growing = 0.25 * 4 + 2.0 * 2
    assert expected.absolute(tolerance).tolist() == [
        [1.0 + growing * (2 + 3) + 0.125, 1.0 + growing * (2 + 1) + 0.125]
    ]
    with pytest.raises(ToleranceError, match="is counted in the value's error scale"):
        tolerance.absolute(expected.value)


def test_partial_sums_add_values_and_squares_of_scales():
    parts = [
        Expected(value=torch.tensor([1.0]), scale=torch.tensor([3.0]), length=2),
        Expected(
            value=torch.tensor([-4.0]),
            scale=torch.tensor([4.0]),
            slack=torch.tensor([0.5]),
            length=3,
        ),
    ]
    total = sum_partials(parts)
    assert (total.value.tolist(), total.scale.tolist()) == ([-3.0], [5.0])
    assert (total.slack.tolist(), total.length, total.partials) == ([0.5], 5, 2)
    assert sum_partials(parts[:1]) is parts[0]
    with pytest.raises(ValueError, match="there are no partial sums to add up"):
        sum_partials([])


def test_tolerance_names_fall_back_to_the_part_before_the_dot():
    tolerances = load_tolerances()
    assert tolerances.of("grad.query", "bf16") is tolerances.of("grad", "bf16")
    with pytest.raises(ToleranceError, match="no tolerance for 'output' in bf16"):
        tolerances.of("output", "bf16")
    with pytest.raises(ToleranceError, match="no tolerance for 'grad' in fp8"):
        tolerances.of("grad", "fp8")


def test_bounds_scaled_by_the_greatest_element():
    bounds = Tolerance(atol=1.0, atol_of_max=0.5, reason="why")
    assert bounds.absolute(torch.tensor([-4.0, 2.0])) == 3.0
    assert bounds.absolute(torch.tensor([math.inf])) == 1.0
    assert bounds.absolute(torch.empty(0)) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grad: {bf16: {rtol: 0.1}}", r"grad\.bf16\.reason: say in a sentence"),
        ("grad: {bf16: {rtol: -1, reason: x}}", r"grad\.bf16\.rtol: expected a number"),
        ("grad: {bf16: {rtol: .inf, reason: x}}", r"grad\.bf16\.rtol: expected a number"),
        ("grad: {bf16: {rtoll: 1, reason: x}}", r"grad\.bf16: unknown key 'rtoll'"),
        ("grad: 1", r"grad: expected a mapping, found 1"),
        ("grad: [", r"cannot be read as YAML"),
    ],
)
def test_bad_tolerance_files_are_refused(tmp_path, text, message):
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(ToleranceError, match=message):
        load_tolerances(path)
