"""Defects of sparse attention backward: a planted trigger, and the healthy twin beside it."""

import pytest
import torch
from kernel_inputs import int32
from training_inputs import (
    BF16,
    assert_attention,
    attention_case,
    attention_reference,
    error,
    having,
    lacking,
    pairs,
    run_attention_backward,
    without,
)

from harness.kernels import AddressFault, KernelHang, modelled_namespace

AMONG = ("1.24.0", "1.26.0", "1.28.0", "1.29.0", "1.32.0")
PAIRS = pairs(*AMONG)
UNMASKED = having("d785", AMONG) + having("d877", AMONG)
MASK = {"sm90": "d785", "sm100": "d877"}
unmasked = pytest.mark.parametrize(("version", "arch"), UNMASKED)


def roomy(rows, before, after):
    """kv rows inside a larger allocation, with rows of ones around them."""
    storage = torch.ones(before + rows.shape[0] + after, rows.shape[1], dtype=rows.dtype)
    storage[before : before + rows.shape[0]] = rows
    return storage[before : before + rows.shape[0]]


def sink_logits(case, row, head):
    """Lower all logits of some rows and heads by 100, so that exp(-L) leaves fp32."""
    case.kv[:, 575] = 40.0
    case.q[row, head, 575] = -100.0 / (40.0 * case.scale)
    case.sink[:] = -300.0
    attention_reference(case)


def fault(namespace, case, **keywords):
    with pytest.raises(AddressFault) as caught:
        run_attention_backward(namespace, case, **keywords)
    return caught.value.evidence


# d785, d877: ids


@pytest.mark.parametrize("with_lengths", [True, False])
@unmasked
def test_an_id_of_the_key_count_leaves_kv(version, arch, with_lengths):
    case = attention_case(tokens=2, lengths=[64, 64])
    case.ids[1, 5] = 80
    evidence = fault(modelled_namespace(version, arch), case, with_lengths=with_lengths)
    assert (evidence.operand, evidence.row, evidence.index) == ("kv", 1, 5)
    assert (evidence.klass, evidence.element_offset) == ("past_allocation", 80 * 576)
    attention_reference(case)
    healthy = without(version, arch, MASK[arch])
    assert_attention(run_attention_backward(healthy, case, with_lengths), case)


@unmasked
def test_a_negative_id_below_the_length_leaves_kv_in_front(version, arch):
    case = attention_case(tokens=2, lengths=[64, 64])
    case.ids[0, 3] = -1
    evidence = fault(modelled_namespace(version, arch), case)
    assert (evidence.operand, evidence.element_offset) == ("kv", -576)
    attention_reference(case)
    healthy = without(version, arch, MASK[arch])
    assert_attention(run_attention_backward(healthy, case), case)


@unmasked
def test_a_negative_id_inside_a_larger_allocation_is_read_silently(version, arch):
    """SM90 also adds to dkv in front of its workspace; SM100 leaves negative rows out there."""
    case = attention_case(tokens=1, lengths=[64])
    case.ids[0, 3] = -1
    namespace = modelled_namespace(version, arch)
    kv = roomy(case.kv, before=2, after=2)
    if arch == "sm90":
        evidence = fault(namespace, case, kv=kv)
        assert (evidence.operand, evidence.klass) == ("dkv", "past_allocation")
    else:
        run_attention_backward(namespace, case, kv=kv)
    assert [(f.operand, f.index, f.klass) for f in namespace.findings] == [("kv", 3, "past_tensor")]


@unmasked
def test_an_id_past_kv_is_added_behind_dkv_silently(version, arch):
    """The workspace is rounded up, so that id S_kv still lies in it: nothing traps."""
    case = attention_case(tokens=1, keys=75, lengths=[64])
    case.ids[0, 3] = 75
    namespace = modelled_namespace(version, arch)
    result = run_attention_backward(namespace, case, kv=roomy(case.kv, before=0, after=1))
    assert [(f.operand, f.klass) for f in namespace.findings] == [
        ("kv", "past_tensor"),
        ("dkv", "past_tensor"),
    ]
    attention_reference(case)
    assert error(result["dq"], case.d_q) > BF16


@unmasked
def test_negative_ids_without_lengths_are_zero_keys(version, arch):
    """They cost nothing but the overflow of exp(-L): inf * 0 in dq."""
    case = attention_case(tokens=2, lengths=[64, 64])
    case.ids[:, 3] = -1
    attention_reference(case)
    namespace = modelled_namespace(version, arch)
    assert_attention(run_attention_backward(namespace, case, with_lengths=False), case)
    sink_logits(case, row=1, head=7)
    dq = run_attention_backward(namespace, case, False)["dq"]
    assert dq[1, 7].isnan().all()
    assert torch.isfinite(dq[0]).all()
    assert torch.isfinite(dq[1, :7]).all()
    healthy = without(version, arch, MASK[arch])
    assert_attention(run_attention_backward(healthy, case, False), case)


@unmasked
def test_slots_behind_the_length_overflow_only_in_a_tile_that_is_begun(version, arch):
    case = attention_case(tokens=2, keys=200, slots=128, lengths=[64, 65])
    sink_logits(case, row=slice(None), head=slice(None))
    dq = run_attention_backward(modelled_namespace(version, arch), case)["dq"]
    assert torch.isfinite(dq[0]).all()
    assert dq[1].isnan().all()
    healthy = without(version, arch, MASK[arch])
    assert_attention(run_attention_backward(healthy, case), case)


@unmasked
def test_infinite_statistics_are_not_a_number(version, arch):
    case = attention_case(tokens=2, lengths=[64, 64])
    namespace = modelled_namespace(version, arch)
    for lse, sink in ((-float("inf"), -float("inf")), (0.0, float("inf"))):
        result = run_attention_backward(
            namespace,
            case,
            lse=torch.full_like(case.lse, lse),
            sink=torch.full((64,), sink),
        )
        assert result["dq"].isnan().all()
        assert result["d_sink"].isnan().all()


# d433, d785: rows without slots


@pytest.mark.parametrize("length", [0, -1])
@pytest.mark.parametrize(("version", "arch"), having("d433", AMONG))
def test_an_empty_row_hangs(version, arch, length):
    case = attention_case(tokens=2)
    with pytest.raises(KernelHang, match=f"row 1 has topk_length {length}") as caught:
        run_attention_backward(modelled_namespace(version, arch), case, lengths=int32(64, length))
    assert caught.value.kernel == "sparse_attention_backward_wrapper"
    healthy = without(version, arch, "d433")
    assert (run_attention_backward(healthy, case, lengths=int32(64, length))["dq"][1] == 0).all()


@pytest.mark.parametrize(("version", "arch"), having("d785", AMONG))
def test_an_empty_row_on_sm90_loads_ids_in_front_of_it(version, arch):
    case = attention_case(tokens=2)
    namespace = modelled_namespace(version, arch)
    evidence = fault(namespace, case, lengths=int32(0, 64))
    assert (evidence.operand, evidence.element_offset) == ("topk_idxs", -64)
    with pytest.raises(KernelHang, match="row 1"):
        run_attention_backward(namespace, case, lengths=int32(64, 0))
    assert [(f.operand, f.klass) for f in namespace.findings] == [("topk_idxs", "wrong_row")]
    healthy = without(version, arch, "d785")
    assert (run_attention_backward(healthy, case, lengths=int32(0, 64))["dq"][0] == 0).all()


# long_topk_lengths


LONG = [p for p in PAIRS if p[1] == "sm100" or p[0] < "1.29.0"]


@pytest.mark.parametrize(("version", "arch"), LONG)
def test_a_length_above_the_slots_reads_the_next_row_of_ids(version, arch):
    case = attention_case(tokens=2, lengths=[64, 64])
    namespace = modelled_namespace(version, arch)
    kv = roomy(case.kv, before=1, after=0)
    run_attention_backward(namespace, case, kv=kv, lengths=int32(65, 64))
    assert ("topk_idxs", 0, 64, "wrong_row") in [
        (f.operand, f.row, f.index, f.klass) for f in namespace.findings
    ]
    assert fault(namespace, case, lengths=int32(64, 65)).operand == "topk_idxs"
    healthy = without(version, arch, "long_topk_lengths")
    assert_attention(run_attention_backward(healthy, case, lengths=int32(65, 65)), case)
    assert healthy.findings == []


@pytest.mark.parametrize(("version", "arch"), [("1.28.0", "sm90"), ("1.25.0", "sm100")])
def test_ids_past_the_row_take_part(version, arch):
    """As if the row were one slot longer, with the next row's first id."""
    case = attention_case(tokens=2, lengths=[64, 64])
    result = run_attention_backward(modelled_namespace(version, arch), case, lengths=int32(65, 64))
    longer = attention_case(tokens=2, lengths=[64, 64])
    longer.ids = torch.cat([case.ids, case.ids.roll(-1, 0)[:, :1]], 1).contiguous()
    expected = run_attention_backward(modelled_namespace("1.32.0"), longer, lengths=int32(65, 64))
    for name in ("dq", "dkv"):
        assert error(result[name], expected[name]) < BF16


def test_sm100_loads_row_minus_one_for_a_slot_past_the_row():
    case = attention_case(tokens=2, lengths=[64, 64])
    evidence = fault(modelled_namespace("1.28.0"), case, lengths=int32(65, 64))
    assert (evidence.operand, evidence.element_offset) == ("kv", -576)
    masked = modelled_namespace("1.29.0")
    assert_attention(run_attention_backward(masked, case, lengths=int32(65, 64)), case)


def test_sm90_clamps_from_1_29_on():
    case = attention_case(tokens=2, lengths=[64, 64])
    namespace = modelled_namespace("1.29.0", "sm90")
    assert_attention(run_attention_backward(namespace, case, lengths=int32(99, 99)), case)
    assert namespace.findings == []


# d384: head counts on SM90


@pytest.mark.parametrize("heads", [16, 32, 48, 96])
@pytest.mark.parametrize(("version", "arch"), having("d384", AMONG))
def test_tiles_mix_tokens_unless_heads_are_a_multiple_of_64(version, arch, heads):
    case = attention_case(tokens=4, heads=heads, lengths=[64, 64, 64, 64])
    result = run_attention_backward(modelled_namespace(version, arch), case)
    assert error(result["dq"], case.d_q) > 10 * BF16
    assert error(result["dkv"], case.d_kv) > 10 * BF16
    assert_attention(run_attention_backward(without(version, arch, "d384"), case), case)


def test_a_tile_takes_the_ids_of_its_first_rows_token():
    case = attention_case(tokens=2, heads=32, lengths=[64, 64])
    mixed = run_attention_backward(modelled_namespace("1.26.0", "sm90"), case)
    same = attention_case(tokens=2, heads=32, lengths=[64, 64])
    same.ids[1] = same.ids[0]
    expected = run_attention_backward(without("1.26.0", "sm90", "d384"), same)
    assert torch.equal(mixed["dq"], expected["dq"])


# d298: a table wider than the key count


@pytest.mark.parametrize(("version", "arch"), having("d298", AMONG))
def test_slots_past_the_key_count_lose_their_dkv_alone(version, arch):
    case = attention_case(tokens=2, keys=40, slots=40, lengths=[64, 64])
    case.ids = torch.cat([torch.full((2, 24), -1).int(), case.ids], 1).contiguous()
    attention_reference(case)
    result = run_attention_backward(modelled_namespace(version, arch), case, with_lengths=False)
    assert error(result["dq"], case.d_q) < BF16
    lost = case.ids[:, 40:].unique().long()
    assert error(result["dkv"], case.d_kv) > 0.3
    kept = torch.ones(40, dtype=torch.bool)
    kept[lost] = False
    assert error(result["dkv"][kept], case.d_kv[kept]) < BF16
    healthy = without(version, arch, "d298")
    assert_attention(run_attention_backward(healthy, case, with_lengths=False), case)


@pytest.mark.parametrize(("version", "arch"), lacking("d298", "sm90", "sm100", among=AMONG))
def test_a_wide_table_is_right_elsewhere(version, arch):
    case = attention_case(tokens=1, keys=40, slots=40, lengths=[64])
    case.ids = torch.cat([case.ids, torch.full((1, 24), -1).int()], 1).contiguous()
    result = run_attention_backward(modelled_namespace(version, arch), case, with_lengths=False)
    assert_attention(result, case)


# lse_over_read


@pytest.mark.parametrize(
    ("version", "heads", "reads"),
    [
        ("1.24.0", 16, True),
        ("1.28.0", 16, False),
        ("1.28.0", 32, True),
        ("1.29.0", 32, False),
        ("1.29.0", 96, True),
        ("1.30.0", 96, False),
        ("1.32.0", 24, True),
        ("1.32.0", 128, False),
    ],
)
def test_statistics_are_read_64_heads_at_a_time(version, heads, reads):
    case = attention_case(tokens=1, heads=heads)
    namespace = modelled_namespace(version)
    run_attention_backward(namespace, case)
    assert [(f.operand, f.klass) for f in namespace.findings] == (
        [("statistics", "past_tensor")] if reads else []
    )
    healthy = without(version, "sm100", "lse_over_read")
    run_attention_backward(healthy, case)
    assert healthy.findings == []
