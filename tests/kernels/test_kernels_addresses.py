import pytest
import torch

from harness.kernels.addresses import (
    MAX_FINDINGS_PER_CALL,
    AddressFault,
    Bounds,
    Operand,
    classify,
    wrap_int32,
)
from harness.kernels.poison import INDEX_POISON, is_poison, poisoned
from harness.record.codec import dumps


def bounds():
    return Bounds(kernel="some_kernel", findings=[])


def sliced():
    """Rows 1..3 of a (6, 10) allocation, its first 8 columns."""
    return Operand.of("values", torch.zeros(6, 10)[1:4, :8])


def test_an_operand_knows_its_allocation_and_span():
    operand = sliced()
    assert (operand.allocation, operand.base, operand.strides) == (60, 10, (10, 1))
    assert operand.span == (10, 38)
    assert operand.offset(2, 3) == 33
    assert Operand.contiguous("x", (2, 3, 4)).strides == (12, 4, 1)
    assert Operand.contiguous("x", (2, 0)).span == (0, 0)


@pytest.mark.parametrize(
    ("offset", "klass"),
    [
        (20, None),
        (27, None),
        (28, "wrong_row"),
        (19, "wrong_row"),
        (38, "past_tensor"),
        (9, "past_tensor"),
        (0, "past_tensor"),
        (59, "past_tensor"),
        (60, "past_allocation"),
        (-1, "past_allocation"),
    ],
)
def test_classes_of_an_access(offset, klass):
    assert classify(sliced(), offset, (20, 28)) == klass


def test_silent_accesses_are_recorded_and_capped():
    judge = bounds()
    for _ in range(MAX_FINDINGS_PER_CALL + 5):
        judge.touch(sliced(), row=1, index=8, offset=28, row_span=(20, 28))
    assert len(judge.findings) == MAX_FINDINGS_PER_CALL
    assert judge.findings[0].klass == "wrong_row"
    assert judge.findings[0].allowed == (20, 28)


def test_leaving_the_allocation_raises_with_evidence():
    with pytest.raises(AddressFault, match=r"some_kernel: values row 2 index 40 is element 70"):
        bounds().touch(sliced(), row=2, index=40, offset=70, row_span=(30, 38))


def test_evidence_of_a_fault_is_a_record():
    with pytest.raises(AddressFault) as caught:
        bounds().touch(sliced(), row=2, index=40, offset=70, row_span=(30, 38))
    assert '"klass"' in dumps(caught.value.evidence)
    assert caught.value.evidence.allowed == (0, 60)


@pytest.mark.parametrize(
    ("first", "count", "index", "klass"),
    [
        (20, 8, None, None),
        (20, 0, None, None),
        (20, 9, 8, "wrong_row"),
        (20, 30, 8, "wrong_row"),
        (20, 41, 40, "past_allocation"),
        (-3, 4, 0, "past_allocation"),
        (18, 4, 0, "wrong_row"),
    ],
)
def test_a_run_names_its_first_bad_element(first, count, index, klass):
    judge = bounds()

    def run():
        judge.touch_run(
            sliced(), row=1, first_index=0, count=count, first_offset=first, row_span=(20, 28)
        )

    if klass == "past_allocation":
        with pytest.raises(AddressFault) as caught:
            run()
        assert (caught.value.evidence.index, caught.value.evidence.klass) == (index, klass)
    else:
        run()
        found = [(finding.index, finding.klass) for finding in judge.findings]
        assert found == ([] if klass is None else [(index, klass)])


@pytest.mark.parametrize(
    ("first", "count", "row", "klass"),
    [
        (0, 3, None, None),
        (0, 0, None, None),
        (0, 4, 3, "past_tensor"),
        (0, 6, 5, "past_allocation"),
        (-1, 2, -1, "past_tensor"),
        (-2, 2, -2, "past_allocation"),
    ],
)
def test_whole_rows(first, count, row, klass):
    judge = bounds()
    if klass == "past_allocation":
        with pytest.raises(AddressFault) as caught:
            judge.touch_rows(sliced(), first_row=first, count=count)
        assert caught.value.evidence.row == row
    else:
        judge.touch_rows(sliced(), first_row=first, count=count)
        found = [(finding.row, finding.klass) for finding in judge.findings]
        assert found == ([] if klass is None else [(row, klass)])


def test_int32_offsets_are_formed_both_ways():
    assert [wrap_int32(value) for value in (5, 2**31 - 1, 2**31, -(2**31) - 1)] == [
        5,
        2**31 - 1,
        -(2**31),
        2**31 - 1,
    ]
    operand = Operand.contiguous("scratch", (4, 2**30))
    bounds().touch_int32(operand, row=1, index=0, offset=2**30)
    with pytest.raises(AddressFault) as caught:
        bounds().touch_int32(operand, row=2, index=0, offset=2**31)
    assert caught.value.evidence.klass == "int32_overflow"
    assert caught.value.evidence.element_offset == -(2**31)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_poison_is_a_signalling_nan(dtype):
    fresh = poisoned((2, 3), dtype)
    assert fresh.isnan().all()
    assert is_poison(fresh).all()
    assert not is_poison(torch.full((2, 3), float("nan"), dtype=dtype)).any()
    fresh[0, 0] = 1.0
    assert is_poison(fresh).sum() == 5


def test_id_poison_is_no_padding():
    fresh = poisoned((4,), torch.int32)
    assert (fresh == INDEX_POISON).all()
    assert INDEX_POISON < -1
    assert is_poison(fresh).all()
