import pytest
import torch
from kernel_inputs import int32

from harness.kernels import AddressFault, NotModelledError, cuda_like, modelled_flash_mla

INF = float("inf")


def inputs(rows=6, keys=40, heads=64, slots=128, depth=576, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(rows, heads, depth, generator=generator).bfloat16()
    kv = torch.randn(keys, 1, depth, generator=generator).bfloat16()
    ids = torch.randint(0, keys, (rows, 1, slots), generator=generator, dtype=torch.int32)
    return q, kv, ids


def reference(q, kv, ids, scale, sink=None, lengths=None):
    """fp64 attention row by row."""
    outs, maxima, lses = [], [], []
    for row in range(q.shape[0]):
        used = ids[row, 0] if lengths is None else ids[row, 0, : int(lengths[row])]
        used = used[(used >= 0) & (used < kv.shape[0])].long()
        keys = kv[used, 0].double()
        logits = q[row].double() @ keys.T * scale
        lse = (
            torch.logsumexp(logits, 1) if used.numel() else torch.full((q.shape[1],), -INF).double()
        )
        whole = lse if sink is None else torch.logaddexp(lse, sink.double())
        outs.append(torch.exp(logits - whole.unsqueeze(1)) @ keys[:, :512])
        maxima.append(logits.amax(1) if used.numel() else lse)
        lses.append(lse)
    return torch.stack(outs), torch.stack(maxima), torch.stack(lses)


def assert_equal_to_reference(result, expected):
    torch.testing.assert_close(result[0].double(), expected[0], rtol=2**-6, atol=2**-6)
    for got, want in zip(result[1:], expected[1:], strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("depth", [512, 576])
def test_attention_over_the_given_rows(arch, depth):
    q, kv, ids = inputs(depth=depth)
    result = modelled_flash_mla(arch)(q, kv, ids, 0.05)
    assert [tuple(tensor.shape) for tensor in result] == [(6, 64, 512), (6, 64), (6, 64)]
    assert [tensor.dtype for tensor in result] == [torch.bfloat16, torch.float32, torch.float32]
    assert_equal_to_reference(result, reference(q, kv, ids, 0.05))


def test_invalid_ids_and_slots_past_the_length_are_ignored():
    q, kv, ids = inputs()
    ids[0, 0, ::3] = -1
    ids[1, 0, ::2] = 40
    ids[2, 0, 5:] = -(2**31)
    ids[3, 0, 1:] = 2**31 - 1
    lengths = int32(128, 100, 10, 5, 1, 64)
    result = modelled_flash_mla()(q, kv, ids, 0.05, topk_length=lengths)
    assert_equal_to_reference(result, reference(q, kv, ids, 0.05, lengths=lengths))


def test_ignored_slots_may_point_at_nan():
    q, kv, ids = inputs()
    kv[0] = float("nan")
    ids[:] = ids.clamp(min=1)
    ids[:, :, 64:] = -1
    result = modelled_flash_mla()(q, kv, ids, 0.05)
    assert all(torch.isfinite(tensor).all() for tensor in result)


@pytest.mark.parametrize("value", [-INF, -1.0, 4.0, INF])
def test_sink_takes_mass_from_the_output_alone(value):
    q, kv, ids = inputs()
    sink = torch.full((64,), value)
    plain, result = (
        modelled_flash_mla()(q, kv, ids, 0.05),
        modelled_flash_mla()(q, kv, ids, 0.05, attn_sink=sink),
    )
    assert_equal_to_reference(result, reference(q, kv, ids, 0.05, sink=sink))
    assert torch.equal(plain[1], result[1])
    assert torch.equal(plain[2], result[2]), "lse without the sink"


def test_rows_without_keys():
    q, kv, ids = inputs(rows=3)
    ids[0] = -1
    for lengths in (int32(128, 0, -5), int32(0, 0, 0)):
        out, max_logits, lse = modelled_flash_mla()(q, kv, ids, 0.05, topk_length=lengths)
        assert (out == 0).all()
        assert (max_logits == -INF).all()
        assert (lse == INF).all()


def test_rows_in_several_chunks(monkeypatch):
    monkeypatch.setattr("harness.kernels.flash_mla._CHUNK_BYTES", 700_000)
    q, kv, ids = inputs(rows=7)
    lengths = int32(3, 128, 0, 17, 64, 1, 90)
    result = modelled_flash_mla()(q, kv, ids, 0.05, topk_length=lengths)
    expected = reference(q, kv, ids, 0.05, lengths=lengths)
    expected[2][2] = INF
    assert_equal_to_reference(result, expected)


@pytest.mark.parametrize("heads", [16, 32, 48, 64, 96, 128, 192])
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_heads_served(arch, heads):
    served = {"sm90": {64, 128, 192}, "sm100": {64, 128}}[arch]
    q, kv, ids = inputs(rows=1, heads=heads)
    if heads in served:
        assert modelled_flash_mla(arch)(q, kv, ids, 0.05)[0].shape == (1, heads, 512)
    else:
        with pytest.raises(RuntimeError, match="query heads"):
            modelled_flash_mla(arch)(q, kv, ids, 0.05)


def test_refused_arguments():
    q, kv, ids = inputs()
    forward = modelled_flash_mla()
    for arguments in [
        (q.float(), kv, ids),
        (q, kv, ids.long()),
        (q, kv[:, 0], ids),
        (q, kv, ids[:, :, :100]),
        (q, kv, ids[:3]),
        (q[..., :128], kv[..., :128], ids),
    ]:
        with pytest.raises(RuntimeError, match="expected"):
            forward(*arguments, 0.05)
    with pytest.raises(RuntimeError, match="d_v"):
        forward(q, kv, ids, 0.05, d_v=256)
    with pytest.raises(RuntimeError, match="topk_length"):
        forward(q, kv, ids, 0.05, topk_length=torch.zeros(6))
    with pytest.raises(NotModelledError):
        forward(q, kv, ids, 0.05, indexer_topk=512)
    with pytest.raises(TypeError):
        forward(q, kv, ids)


def test_a_length_past_the_slots_reads_the_next_row_of_ids():
    q, kv, ids = inputs()
    findings: list = []
    forward = modelled_flash_mla(findings=findings)
    forward(q, kv, ids, 0.05, topk_length=int32(129, 1, 1, 1, 1, 1))
    assert [(f.operand, f.row, f.index, f.klass) for f in findings] == [
        ("indices", 0, 128, "wrong_row")
    ]
    with pytest.raises(AddressFault) as caught:
        forward(q, kv, ids, 0.05, topk_length=int32(1, 1, 1, 1, 1, 129))
    assert caught.value.evidence.klass == "past_allocation"


def test_results_are_wrapped_like_q():
    q, kv, ids = inputs(rows=2)
    assert all(tensor.is_cuda for tensor in modelled_flash_mla()(cuda_like(q), kv, ids, 0.05))
