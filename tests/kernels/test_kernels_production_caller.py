"""The training models behind Megatron's own fused sparse-loss and attention-backward code.

What is compared is the loss and its gradients against fp64 autograd, so every wrapper on the way
has to be right, and every published failure has to show where it was reported.
"""

from types import SimpleNamespace

import pytest
import torch
from training_inputs import BF16, attention_case, attention_reference, distinct_ids, error

from harness.kernels import CompileFailure, KernelHang, cuda_like, modelled_namespace

pytest.importorskip("megatron.core", reason="needs megatron-core")
_MODULE = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
CAPABILITY = {"sm90": (9, 0), "sm100": (10, 0)}


@pytest.fixture
def caller(monkeypatch):
    """Megatron's module with a modelled namespace of a release in place of ``cudnn.DSA``."""
    from importlib import import_module

    module = import_module(_MODULE)

    def build(version, arch):
        monkeypatch.setattr(module, "_cudnn_dsa", modelled_namespace(version, arch))
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: CAPABILITY[arch])
        monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
        return module

    return build


def sparse_loss_case(batch, slots=128, used=100, rows=4, keys=150, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, batch, 64, 576, generator=generator).bfloat16()
    kv = torch.randn(keys, batch, 576, generator=generator).bfloat16()
    q = torch.randn(batch, rows, 64, 128, generator=generator).bfloat16()
    k = torch.randn(batch, keys, 128, generator=generator).bfloat16()
    w = (torch.randn(batch, rows, 64, generator=generator) * 0.05).bfloat16()
    chosen = distinct_ids(batch * rows, keys, used, generator).view(batch, rows, used)
    ids = torch.full((batch, rows, slots), -1, dtype=torch.int32)
    ids[..., :used] = chosen
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, w)]
    places = (torch.arange(batch).view(-1, 1, 1), chosen.long())
    dots = torch.einsum("bqhd,bqid->bqhi", leaves[0], leaves[1][places])
    scores = (dots.relu() * leaves[2].unsqueeze(-1)).sum(2)
    logits = torch.einsum(
        "bqhd,bqid->bqhi",
        query.permute(1, 0, 2, 3).double(),
        kv.permute(1, 0, 2).double()[places],
    )
    logits *= 576**-0.5
    target = logits.softmax(-1).sum(2)
    target /= target.sum(-1, keepdim=True)
    loss = (target * (target.log() - torch.log_softmax(scores, -1))).sum(-1).mean()
    loss.backward()
    payload = torch.full((batch, rows, slots), -float("inf"))
    payload[..., :used] = scores.detach().float()
    lse = torch.logsumexp(logits, -1).permute(1, 0, 2).reshape(rows * batch, 64).float()
    return SimpleNamespace(
        arguments={
            "q_idx_bshd": q,
            "k_idx_bsd": k,
            "w_bsh": w,
            "topk_indices_cmp": ids,
            "topk_length_cmp": torch.full((batch, rows), used, dtype=torch.int32),
            "indexer_score_payload": payload,
            "query": cuda_like(query),
            "kv_full": kv,
            "lse": lse,
        },
        loss=loss.item(),
        d_q=leaves[0].grad,
        d_k=leaves[1].grad,
    )


def sparse_loss(module, case):
    result = module._compute_sparse_indexer_loss_and_grads(
        **case.arguments,
        softmax_scale=576**-0.5,
        loss_coeff=1.0,
        query_valid_rows=None,
        calculate_per_token_loss=False,
        tp_group=SimpleNamespace(size=lambda: 1),
    )
    return result[0].item(), result[1].permute(1, 0, 2, 3), result[2].permute(1, 0, 2)


@pytest.mark.parametrize(
    ("version", "arch"),
    [
        ("1.25.0", "sm90"),
        ("1.26.0", "sm90"),
        ("1.26.0", "sm100"),
        ("1.28.0", "sm100"),
        ("1.29.0", "sm100"),
        ("1.32.0", "sm90"),
        ("1.32.0", "sm100"),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_sparse_loss_and_its_gradients(caller, version, arch, batch):
    case = sparse_loss_case(batch)
    loss, d_q, d_k = sparse_loss(caller(version, arch), case)
    assert loss == pytest.approx(case.loss, rel=1e-5)
    assert error(d_q[0], case.d_q[0]) < BF16
    assert error(d_k[0], case.d_k[0]) < BF16
    if batch == 2 and version >= "1.26.0":
        # Global ids were taken for local ones. What is left comes of the unused slots, which the
        # caller points at key 0 with a prediction of the least normal number.
        assert d_q[1].abs().max() < 1e-36
        assert d_k[1].abs().max() < 1e-36
    elif batch == 2:
        assert error(d_q[1], case.d_q[1]) < BF16
        assert error(d_k[1], case.d_k[1]) < BF16


def test_sparse_loss_before_1_26_does_not_compile_on_sm100(caller):
    with pytest.raises(CompileFailure):
        sparse_loss(caller("1.25.0", "sm100"), sparse_loss_case(1))


def test_widths_that_are_no_multiple_of_the_block(caller):
    """SM90 never computes the target of the last slots; SM100 asserts, or hangs up to 1.30."""
    narrow = sparse_loss_case(1, slots=100)
    loss, _, _ = sparse_loss(caller("1.32.0", "sm90"), narrow)
    assert loss != loss, "uninitialised memory reaches the loss"
    with pytest.raises(AssertionError, match="multiple of 64"):
        sparse_loss(caller("1.32.0", "sm100"), narrow)
    odd = sparse_loss_case(1, slots=192)
    with pytest.raises(KernelHang):
        sparse_loss(caller("1.30.0", "sm100"), odd)
    loss, d_q, _ = sparse_loss(caller("1.32.0", "sm100"), odd)
    assert loss == pytest.approx(odd.loss, rel=1e-5)
    assert error(d_q, odd.d_q) < BF16


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("version", ["1.26.0", "1.32.0"])
@pytest.mark.parametrize("empty", [False, True])
def test_attention_backward_with_padded_heads(caller, version, arch, empty):
    """32 heads become 64; a row without keys is left out behind a dummy row."""
    case = attention_case(tokens=3, heads=32, lengths=[20, 1, 64])
    case.sink[:] = -float("inf")
    if empty:
        case.dout[1] = 0
    attention_reference(case)
    lengths = case.lengths.clone()
    if empty:
        lengths[1], case.lse[1], case.out[1] = 0, float("inf"), 0
    d_q, d_kv = caller(version, arch)._run_sparse_attention_backward(
        q_flat=cuda_like(case.q),
        kv_flat=case.kv,
        attn_sink=case.sink,
        global_idxs=case.ids,
        out_flat=case.out,
        lse=case.lse,
        topk_length=lengths,
        softmax_scale=case.scale,
        sq=3,
        b=1,
        num_heads=32,
        d=576,
        skv=80,
        grad_output=case.dout,
        all_rows_nonempty=not empty,
    )
    assert error(d_q.view(case.q.shape), case.d_q) < BF16
    assert error(d_kv.view(case.kv.shape), case.d_kv) < BF16
