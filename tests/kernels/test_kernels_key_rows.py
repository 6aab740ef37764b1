import pytest
import torch
from training_inputs import error

from harness.kernels import AddressFault
from harness.kernels.addresses import Bounds
from harness.kernels.attention_gradient import group_gradients
from harness.kernels.key_rows import Accumulator, KeyRows, Touched


def bounds():
    return Bounds(kernel="k", findings=[])


def touched(*rows, mask=None, low=0, high=4):
    numbers = torch.tensor([rows])
    used = torch.ones_like(numbers, dtype=torch.bool) if mask is None else torch.tensor([mask])
    return Touched(rows=numbers, mask=used, low=low, high=high, first=7)


def keys(before=0, after=0, rows=4, depth=8, skew=0):
    """Rows 100 * r + column inside a larger allocation of the same pattern."""
    total = before + rows + after
    storage = torch.arange(skew + total * depth, dtype=torch.float32)
    return storage[skew:].view(total, depth)[before : before + rows]


@pytest.mark.parametrize("skew", [0, 3])
def test_rows_in_front_and_behind_are_read_where_they_lie(skew):
    judge = bounds()
    tensor = keys(before=2, after=1, skew=skew)
    found = KeyRows.of("k", tensor, judge).gather(touched(-2, 0, 3, 4))
    firsts = (found[0, :, 0] - tensor[0, 0]).tolist()
    assert firsts == [-16.0, 0.0, 24.0, 32.0]
    assert [(f.row, f.index, f.klass) for f in judge.findings] == [
        (7, 0, "past_tensor"),
        (7, 3, "past_tensor"),
    ]


@pytest.mark.parametrize(("row", "offset"), [(-1, -8), (4, 32), (2**31, 2**34)])
def test_rows_outside_the_allocation_fault(row, offset):
    with pytest.raises(AddressFault) as caught:
        KeyRows.of("k", keys(), bounds()).gather(touched(0, row))
    evidence = caught.value.evidence
    assert (evidence.element_offset, evidence.klass) == (offset, "past_allocation")
    assert (evidence.operand, evidence.row, evidence.index) == ("k", 7, 1)


def test_a_fault_comes_before_findings():
    judge = bounds()
    with pytest.raises(AddressFault):
        KeyRows.of("k", keys(after=1), judge).gather(touched(4, 5))
    assert judge.findings == []


def test_a_row_that_leaves_the_allocation_halfway_faults_at_its_end():
    storage = torch.zeros(36)
    with pytest.raises(AddressFault) as caught:
        KeyRows.of("k", storage[:32].view(4, 8), bounds()).gather(touched(4))
    assert caught.value.evidence.element_offset == 36


def test_another_owners_rows_are_findings_and_unused_slots_are_not():
    judge = bounds()
    found = KeyRows.of("k", keys(), judge).gather(
        touched(1, 99, 3, mask=[True, False, True], low=0, high=2)
    )
    assert (found[0, 1] == 0).all()
    assert [(f.index, f.klass, f.allowed) for f in judge.findings] == [(2, "wrong_row", (0, 16))]


def test_no_keys_at_all():
    found = KeyRows.of("k", torch.zeros(0, 8), bounds()).gather(touched(0, mask=[False]))
    assert found.tolist() == [[[0.0] * 8]]


def test_findings_are_limited():
    judge = bounds()
    KeyRows.of("k", keys(), judge).gather(touched(*[3] * 200, high=2))
    assert len(judge.findings) == 64


def test_the_accumulator_adds_repeated_rows_and_drops_the_rest():
    judge = bounds()
    sums = Accumulator.of("d", 4, 2, judge, multiple=8)
    sums.add(touched(1, 1, 0, mask=[True, True, False]), torch.ones(1, 3, 2))
    assert sums.result.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]
    sums.add(touched(5), torch.ones(1, 1, 2))
    assert [(f.operand, f.klass) for f in judge.findings] == [("d", "past_tensor")]
    assert sums.result.sum() == 4
    with pytest.raises(AddressFault):
        sums.add(touched(8), torch.ones(1, 1, 2))
    with pytest.raises(AddressFault):
        sums.add(touched(-1), torch.ones(1, 1, 2))


def test_attention_arithmetic_without_rounding_equals_autograd():
    """With fp32 in place of bf16 only the formula is left: what remains is fp32 summation."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 576, generator=generator)
    rows = torch.randn(2, 5, 576, generator=generator)
    dout = torch.randn(2, 3, 512, generator=generator)
    leaves = [tensor.double().requires_grad_() for tensor in (q, rows)]
    logits = torch.bmm(leaves[0], leaves[1].transpose(1, 2)) * 0.04
    mass = torch.logsumexp(logits, 2)
    out = torch.bmm(torch.exp(logits - mass.unsqueeze(2)), leaves[1][..., :512])
    out.backward(dout.double())
    made = group_gradients(
        q,
        dout,
        rows,
        torch.ones(2, 5, dtype=torch.bool),
        mass.detach().float(),
        (out.detach() * dout).sum(2).float(),
        scale=0.04,
        dtype=torch.float32,
        scales_first=True,
    )
    assert error(made.queries, leaves[0].grad) < 1e-5
    assert error(made.keys, leaves[1].grad) < 1e-5
