"""Sparse attention backward: gradients, ids, lengths, and what each release refuses."""

import pytest
import torch
from kernel_inputs import int32
from training_inputs import (
    BF16,
    assert_attention,
    attention_case,
    attention_reference,
    error,
    pairs,
    run_attention_backward,
)

from harness.kernels import ARCHES, NotModelledError, cuda_like, modelled_namespace

INF = float("inf")
AMONG = ("1.24.0", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.32.0")
PAIRS = pairs(*AMONG)
every_release = pytest.mark.parametrize(("version", "arch"), PAIRS)
CASE = attention_case()


@every_release
def test_gradients_equal_autograd_of_attention_with_a_sink(version, arch):
    namespace = modelled_namespace(version, arch)
    result = run_attention_backward(namespace, CASE)
    assert list(result.keys()) == ["dq", "dkv", "d_sink"]
    assert [tensor.dtype for tensor in result] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert_attention(result, CASE)
    assert namespace.findings == []


@pytest.mark.parametrize(("heads", "depth"), [(128, 576), (64, 512), (128, 512)])
@pytest.mark.parametrize("arch", ARCHES)
def test_gradients_of_other_shapes(arch, heads, depth):
    case = attention_case(tokens=2, heads=heads, depth=depth)
    assert_attention(run_attention_backward(modelled_namespace(arch=arch), case), case)


@pytest.mark.parametrize("heads", [16, 32, 48, 96])
@pytest.mark.parametrize(("version", "arch"), [("1.27.0", "sm90"), ("1.32.0", "sm100")])
def test_gradients_of_odd_head_counts(version, arch, heads):
    case = attention_case(tokens=3, heads=heads)
    assert_attention(run_attention_backward(modelled_namespace(version, arch), case), case)


@pytest.mark.parametrize("slots", [100, 128, 384, 768])
@pytest.mark.parametrize("arch", ARCHES)
def test_widths_need_no_multiple(arch, slots):
    case = attention_case(tokens=2, keys=800, slots=slots, lengths=[slots, slots - 1])
    assert_attention(run_attention_backward(modelled_namespace(arch=arch), case), case)


@pytest.mark.parametrize("arch", ARCHES)
def test_half_precision_inputs(arch):
    case = attention_case(dtype=torch.float16)
    result = run_attention_backward(modelled_namespace(arch=arch), case)
    assert result["dq"].dtype == torch.float16
    # fp16 has three more bits than bf16.
    assert_attention(result, case, 2**-9)


def test_default_scale_and_wrapped_results():
    result = modelled_namespace().sparse_attention_backward_wrapper(
        cuda_like(CASE.q), CASE.kv, CASE.out, CASE.dout, CASE.lse, CASE.sink, CASE.ids,
        topk_length=CASE.lengths,
    )  # fmt: skip
    assert_attention(result, CASE)
    assert all(tensor.is_cuda for tensor in result)


def test_groups_in_several_chunks(monkeypatch):
    monkeypatch.setattr("harness.kernels.sparse_attention_backward._CHUNK_BYTES", 1 << 19)
    assert_attention(run_attention_backward(modelled_namespace(), CASE), CASE)


def test_rounding_of_p_and_of_the_slopes_shows():
    """With exact statistics the error is that of two bf16 roundings, and twice-rounded is worse."""
    late = run_attention_backward(modelled_namespace("1.30.0", "sm90"), CASE)
    early = run_attention_backward(modelled_namespace("1.29.0", "sm90"), CASE)
    assert 2**-11 < error(late["dq"], CASE.d_q) < error(early["dq"], CASE.d_q) < BF16


def test_caller_buffers_keep_their_identity():
    dq, dkv = torch.full_like(CASE.q, INF), torch.full_like(CASE.kv, INF)
    result = run_attention_backward(modelled_namespace(), CASE, dq=dq, dkv=dkv)
    assert result["dq"] is dq
    assert result["dkv"] is dkv
    assert_attention(result, CASE)


# Ids and lengths of the releases that mask


LATE = [(v, a) for v, a in PAIRS if v >= "1.29.0"]
late_releases = pytest.mark.parametrize(("version", "arch"), LATE)


@pytest.mark.parametrize("invalid", [-1, -(2**31), 80, 3 * 80, 2**31 - 1])
@pytest.mark.parametrize("with_lengths", [True, False])
@late_releases
def test_ids_that_are_no_row_are_ignored(version, arch, invalid, with_lengths):
    case = attention_case(tokens=2, lengths=[64, 64])
    case.ids = case.ids.clone()
    case.ids[:, ::3] = invalid
    attention_reference(case)
    namespace = modelled_namespace(version, arch)
    assert_attention(run_attention_backward(namespace, case, with_lengths), case)
    assert namespace.findings == []


@pytest.mark.parametrize(("version", "arch"), [*LATE, ("1.27.0", "sm100"), ("1.28.0", "sm100")])
def test_rows_of_no_or_negative_length_have_no_gradient(version, arch):
    case = attention_case(tokens=3, lengths=[40, 1, 64])
    namespace = modelled_namespace(version, arch)
    lengths = int32(40, 0, -5)
    case.out[1:], case.lse[1:] = 0, INF
    result = run_attention_backward(namespace, case, lengths=lengths)
    assert (result["dq"][1:] == 0).all()
    alone = attention_case(tokens=3, lengths=[40, 1, 64])
    alone.dout[1:] = 0
    alone.lengths = int32(40, 1, 1)
    attention_reference(alone)
    assert error(result["dkv"], alone.d_kv) < BF16
    assert error(result["d_sink"], alone.d_sink) < BF16


@pytest.mark.parametrize("sink", [-INF, 0.0])
@late_releases
def test_rows_without_mass(version, arch, sink):
    """FlashMLA reports +inf for a row without keys; -inf with a sink of -inf is nothing either."""
    case = attention_case(tokens=2, lengths=[64, 64])
    sinks = torch.full((64,), sink)
    for empty in (INF, -INF) if sink == -INF else (INF,):
        lse = case.lse.clone()
        lse[0] = empty
        result = run_attention_backward(
            modelled_namespace(version, arch), case, lse=lse, sink=sinks
        )
        assert all(torch.isfinite(tensor).all() for tensor in result)
        assert (result["dq"][0] == 0).all()
        assert (result["dq"][1] != 0).any()


@late_releases
def test_a_sink_of_plus_infinity_takes_all_mass(version, arch):
    sink = torch.full((64,), INF)
    result = run_attention_backward(modelled_namespace(version, arch), CASE, sink=sink)
    assert (result["dq"] == 0).all()
    delta = (CASE.out.float() * CASE.dout.float()).sum((0, 2))
    torch.testing.assert_close(result["d_sink"], -delta, rtol=1e-4, atol=1e-3)


@every_release
def test_a_sink_of_minus_infinity_is_no_sink(version, arch):
    case = attention_case(tokens=2, lengths=[64, 64])
    case.sink = torch.full((64,), -INF)
    attention_reference(case)
    result = run_attention_backward(modelled_namespace(version, arch), case)
    assert (result["d_sink"] == 0).all()
    assert error(result["dq"], case.d_q) < BF16
    assert error(result["dkv"], case.d_kv) < BF16


# Refusals


def outcome(version, arch, error_type, **changes):
    case = attention_case(tokens=2)
    keywords = changes.pop("keywords", {})
    vars(case).update({name: change(getattr(case, name)) for name, change in changes.items()})
    with pytest.raises(error_type):
        run_attention_backward(modelled_namespace(version, arch), case, **keywords)


@every_release
def test_dtypes_are_refused_everywhere(version, arch):
    late = ValueError if version >= "1.27.0" else AssertionError
    outcome(version, arch, ValueError, q=lambda t: t.float())
    outcome(version, arch, ValueError, kv=lambda t: t.half())
    outcome(version, arch, ValueError, lse=lambda t: t.half())
    outcome(version, arch, ValueError, ids=lambda t: t.long())
    outcome(version, arch, ValueError, sink=lambda t: t.half())
    outcome(version, arch, late, out=lambda t: t.float())
    outcome(version, arch, late, lengths=lambda t: t.long())


@every_release
def test_shapes_are_refused_from_1_27_on(version, arch):
    kind = ValueError if version >= "1.27.0" else NotModelledError
    outcome(version, arch, kind, lse=lambda t: t[:1])
    outcome(version, arch, kind, out=lambda t: t[..., :256])
    outcome(version, arch, kind, lengths=lambda t: t[:1])
    outcome(version, arch, kind, kv=lambda t: t[:, :512])
    narrow = AssertionError if kind is NotModelledError and arch == "sm90" else kind
    outcome(version, arch, narrow, q=lambda t: t[..., :256], kv=lambda t: t[..., :256])


def test_options():
    for keywords, arch in (
        ({"deterministic": True}, "sm90"),
        ({"q_cluster_mode": "pairs"}, "sm100"),
        ({"q_cluster_mode": "adaptive_pair"}, "sm100"),
        ({"workspace": torch.zeros(100, dtype=torch.uint8)}, "sm100"),
        ({"workspace": torch.zeros(1 << 20)}, "sm100"),
    ):
        outcome("1.32.0", arch, ValueError, keywords=keywords)
    for version in ("1.29.0", "1.32.0"):
        case = attention_case(tokens=2)
        result = run_attention_backward(modelled_namespace(version), case, deterministic=True)
        assert_attention(result, case)
        outcome(
            version,
            "sm100",
            ValueError,
            lse=lambda t: torch.zeros(1 + t.numel())[1:].view(t.shape),
        )


def test_buffers_and_heads_are_asserted():
    outcome("1.26.0", "sm100", AssertionError, keywords={"dq": torch.zeros(1)})
    outcome("1.32.0", "sm90", ValueError, keywords={"dkv": torch.zeros(1)})
    one_head = attention_case(tokens=1, heads=2)
    for name in ("q", "out", "dout", "lse"):
        setattr(one_head, name, getattr(one_head, name)[:, :1])
    one_head.sink = one_head.sink[:1]
    with pytest.raises(AssertionError, match="head"):
        run_attention_backward(modelled_namespace(arch="sm90"), one_head)


@pytest.mark.parametrize("arch", ARCHES)
def test_empty_extents_are_accepted(arch):
    namespace = modelled_namespace(arch=arch)
    case = attention_case(tokens=2)
    no_slots = run_attention_backward(namespace, case, with_lengths=False, ids=case.ids[:, :0])
    assert (no_slots["dq"] == 0).all()
    for name in ("q", "out", "dout", "lse", "ids", "lengths"):
        setattr(case, name, getattr(case, name)[:0])
    empty = run_attention_backward(namespace, case)
    assert empty["dq"].shape == (0, 64, 576)
    assert (empty["dkv"] == 0).all()
