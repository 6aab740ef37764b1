"""Inputs and fp64 references that the tests of the training wrappers share.

Gradients are compared by relative norm within 2^-7: P, dS and the results are each rounded to bf16
(at most 2^-9 relative), and no reference value cancels more than a rounding step away.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from harness.kernels import ARCHES, RELEASES, ModelledNamespace, modelled_namespace

BF16 = 2**-7
TURNS = ("1.24.0", "1.25.0", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.0", "1.32.0")
"""Releases in which some rule of the training wrappers changes."""


def pairs(*versions: str) -> list[tuple[str, str]]:
    """Some releases on both architectures: those in which the wrapper at hand changed."""
    return [(version, arch) for version in versions for arch in ARCHES]


def having(defect: str, among: tuple[str, ...] = TURNS) -> list[tuple[str, str]]:
    return [(v, a) for v, a in pairs(*among) if defect in RELEASES[v].defects[a]]


def lacking(defect: str, *arches: str, among: tuple[str, ...] = TURNS) -> list[tuple[str, str]]:
    return [
        (v, a) for v, a in pairs(*among) if a in arches and defect not in RELEASES[v].defects[a]
    ]


def without(version: str, arch: str, *gone: str, seed: int = 0) -> ModelledNamespace:
    """The release with some of its defects switched off, and nothing else changed."""
    kept = tuple(sorted(RELEASES[version].defects[arch] - set(gone)))
    return modelled_namespace(version, arch, defects=kept, seed=seed)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative norm of the difference."""
    difference = (found.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp(min=1e-30))


def distinct_ids(rows: int, keys: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """int32 (rows, count), distinct per row."""
    order = [torch.randperm(keys, generator=generator)[:count] for _ in range(rows)]
    return torch.stack(order).to(torch.int32)


# Indexer


def indexer_case(batch=2, rows=3, keys=40, heads=64, used=20, slots=128, seed=0, sm_scale=0.09):
    """A sparse indexer loss: local ids padded with -1, target and predict padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, rows, heads, 128, generator=generator).bfloat16()
    k = torch.randn(batch, keys, 128, generator=generator).bfloat16()
    w = torch.randn(batch, rows, heads, generator=generator).bfloat16()
    ids = distinct_ids(batch * rows, keys, used, generator).view(batch, rows, used)
    target = torch.rand(batch, rows, used, generator=generator) + 0.05
    target /= target.sum(-1, keepdim=True)
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, w)]
    scores = _selected_scores(*leaves, ids, sm_scale)
    log_predict = torch.log_softmax(scores, -1)
    loss = (target.double() * (target.double().log() - log_predict)).sum(-1).mean()
    loss.backward()

    def padded(tensor, value):
        return torch.nn.functional.pad(tensor, (0, slots - used), value=value).contiguous()

    return SimpleNamespace(
        q=q,
        k=k,
        w=w,
        ids=padded(ids, -1),
        target=padded(target, 0.0),
        predict=padded(log_predict.detach().exp().float(), 0.0),
        sm_scale=sm_scale,
        d_q=leaves[0].grad,
        d_k=leaves[1].grad,
        d_w=leaves[2].grad,
    )


def _selected_scores(q, k, w, ids, sm_scale):
    chosen = torch.stack([k[b][ids[b].long()] for b in range(k.shape[0])])
    dots = torch.einsum("bqhd,bqid->bqhi", q, chosen) * sm_scale
    return (dots.relu() * w.unsqueeze(-1)).sum(2)


def globalised(ids: torch.Tensor, keys: int) -> torch.Tensor:
    """Local ids to b * keys + local; negative ones stay."""
    batch = torch.arange(ids.shape[0], dtype=torch.int32).view(-1, 1, 1)
    return torch.where(ids < 0, ids, ids + batch * keys)


def run_indexer_backward(namespace, case, ids=None, grad_loss=1.0, **keywords):
    """Call the wrapper as its release wants it: global ids and a number, or local and a tensor."""
    parameters = namespace.release.signatures["indexer_backward_wrapper"].parameters
    local = case.ids if ids is None else ids
    if ids is None and "topk_indices_global" not in parameters:
        local = globalised(local, case.k.shape[1])
    return namespace.indexer_backward_wrapper(
        case.q,
        case.w,
        case.k,
        case.target.clone(),
        case.predict.clone(),
        local,
        sm_scale=case.sm_scale,
        grad_loss=torch.tensor(grad_loss),
        **keywords,
    )


# Attention


def attention_case(
    tokens=4, heads=64, depth=576, keys=80, slots=64, lengths=None, seed=0, dtype=torch.bfloat16
):
    """Sparse attention with a sink; every slot of ``ids`` holds a key, lengths cut them."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(tokens, heads, depth, generator=generator).to(dtype)
    kv = torch.randn(keys, depth, generator=generator).to(dtype)
    dout = torch.randn(tokens, heads, 512, generator=generator).to(dtype)
    sink = torch.randn(heads, generator=generator)
    ids = distinct_ids(tokens, keys, slots, generator)
    used = lengths or [slots, 1, slots // 2, slots // 3, *[slots] * tokens][:tokens]
    case = SimpleNamespace(
        q=q,
        kv=kv,
        dout=dout,
        sink=sink,
        ids=ids,
        lengths=torch.tensor(used, dtype=torch.int32),
        scale=depth**-0.5,
    )
    attention_reference(case)
    return case


def attention_reference(case) -> None:
    """Set out, lse and the gradients of ``case`` by fp64 autograd, row by row."""
    leaves = [tensor.double().requires_grad_() for tensor in (case.q, case.kv, case.sink)]
    q, kv, sink = leaves
    outs, lses = [], []
    for token in range(q.shape[0]):
        chosen = case.ids[token, : max(int(case.lengths[token]), 0)]
        chosen = chosen[(chosen >= 0) & (chosen < kv.shape[0])].long()
        logits = q[token] @ kv[chosen].T * case.scale
        lse = torch.logsumexp(logits, 1)
        mass = torch.logaddexp(lse, sink)
        outs.append(torch.exp(logits - mass.unsqueeze(1)) @ kv[chosen][:, :512])
        lses.append(lse)
    out = torch.stack(outs)
    out.backward(case.dout.double())
    case.out, case.lse = out.detach().to(case.q.dtype), torch.stack(lses).detach().float()
    case.d_q, case.d_kv, case.d_sink = (leaf.grad for leaf in leaves)


def run_attention_backward(namespace, case, with_lengths=True, **keywords):
    return namespace.sparse_attention_backward_wrapper(
        case.q,
        keywords.pop("kv", case.kv),
        case.out,
        case.dout,
        keywords.pop("lse", case.lse),
        keywords.pop("sink", case.sink),
        keywords.pop("ids", case.ids),
        softmax_scale=case.scale,
        topk_length=keywords.pop("lengths", case.lengths) if with_lengths else None,
        **keywords,
    )


def assert_attention(result, case, tolerance=BF16) -> None:
    assert error(result["dq"], case.d_q) < tolerance
    assert error(result["dkv"], case.d_kv) < tolerance
    # out arrives rounded to bf16, and delta is a sum of 512 of its products.
    assert error(result["d_sink"], case.d_sink) < tolerance
