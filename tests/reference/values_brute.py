"""Attention and indexer loss over plain Python numbers, and small inputs for both."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import torch

from harness.layout import pack_sequences
from harness.reference.attention import AttentionOperands
from harness.reference.group_values import GroupInputs, exact_picks, group_values
from harness.reference.loss_terms import CountedRows, LossReduction, LossSpec
from harness.reference.operands import Operands
from harness.reference.support import Selected, Visible

HEADS, WIDTH, LATENT, VALUE = 2, 5, 3, 4
INDEXER_HEADS, INDEXER_WIDTH = 3, 4
SCALE = 0.7


def attention_case(rows=6, keys=7, seed=0, *, up_v=True, dtype="fp64", torch_dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(torch_dtype)

    attention = AttentionOperands(
        query=normal(rows, HEADS, WIDTH),
        key=normal(keys, WIDTH),
        softmax_scale=SCALE,
        up_v=normal(HEADS, VALUE, LATENT) if up_v else None,
        latent_dim=LATENT,
        dtype=dtype,
    )
    indexer = Operands(
        q=normal(rows, INDEXER_HEADS, INDEXER_WIDTH),
        k=normal(keys, INDEXER_WIDTH),
        w=normal(rows, INDEXER_HEADS),
        dtype=dtype,
    )
    return attention, indexer


def random_ids(rows, keys, slots, seed=0, *, empty_rows=()):
    """Return distinct ids in random slots, some slots empty, some rows without any."""
    rng = random.Random(seed)
    ids = []
    for row in range(rows):
        count = 0 if row in empty_rows else rng.randint(1, min(slots, keys))
        picked = rng.sample(range(keys), count) + [-1] * (slots - count)
        rng.shuffle(picked)
        ids.append(picked)
    return torch.tensor(ids, dtype=torch.int64).view(rows, slots)


KINDS = ["selected", "visible"]


def supports(rows=6, keys=7):
    """Return a support of each kind; both have rows without keys."""
    selected = Selected.of(random_ids(rows, keys, 4, empty_rows=(2,)), num_keys=keys)
    starts = torch.tensor([0, 0, 0, 4, 4, 0])
    limits = torch.tensor([1, 2, 4, 1, 3, 0])
    return {"selected": selected, "visible": Visible.of(starts, limits, num_keys=keys)}


def keys_of(support):
    """Return the keys of each row as lists."""
    if isinstance(support, Selected):
        return [[key for key in row if key < support.num_keys] for row in support.ids.tolist()]
    assert isinstance(support, Visible)
    ranges = zip(support.starts.tolist(), support.limits.tolist(), strict=True)
    return [list(range(start, start + limit)) for start, limit in ranges]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def brute_attention(attention, keys):
    """Return output (R, H, V or LATENT) and lse (R, H) by loops."""
    query, key = attention.query.tolist(), attention.key.tolist()
    up_v = None if attention.up_v is None else attention.up_v.tolist()
    output, lse = [], []
    for row, heads in enumerate(query):
        output.append([])
        lse.append([])
        for head, q in enumerate(heads):
            logits = [attention.softmax_scale * dot(q, key[n]) for n in keys[row]]
            p = softmax(logits) if logits else []
            latent = [
                math.fsum(p_n * key[n][c] for p_n, n in zip(p, keys[row], strict=True))
                for c in range(attention.latent_dim)
            ]
            output[-1].append(latent if up_v is None else [dot(w, latent) for w in up_v[head]])
            lse[-1].append(
                math.log(math.fsum(math.exp(x) for x in logits)) if logits else -math.inf
            )
    return torch.tensor(output, dtype=torch.float64), torch.tensor(lse, dtype=torch.float64)


def brute_kl(indexer, attention, keys, *, relu=True):
    """Return the divergence of each row by loops."""
    query, key = attention.query.tolist(), attention.key.tolist()
    q_indexer, k_indexer, weights = (t.tolist() for t in (indexer.q, indexer.k, indexer.w))
    result = []
    for row, own in enumerate(keys):
        if not own:
            result.append(0.0)
            continue
        mass = [0.0] * len(own)
        for q in query[row]:
            for slot, p in enumerate(
                softmax([attention.softmax_scale * dot(q, key[n]) for n in own])
            ):
                mass[slot] += p
        target = [m / math.fsum(mass) for m in mass]
        scores = []
        for n in own:
            products = [dot(q, k_indexer[n]) for q in q_indexer[row]]
            scores.append(dot([max(0.0, x) if relu else x for x in products], weights[row]))
        top = max(scores)
        lse = top + math.log(math.fsum(math.exp(x - top) for x in scores))
        terms = [t * (math.log(t) - (x - lse)) for t, x in zip(target, scores, strict=True)]
        result.append(math.fsum(terms))
    return torch.tensor(result, dtype=torch.float64)


def group_inputs(pack, seed=0, *, dtype="fp64", torch_dtype=torch.float64):
    """Return inputs in packed order, drawn once for the pack's rows, and an upstream gradient."""
    attention, indexer = attention_case(
        pack.total_q, pack.total_k, seed, dtype=dtype, torch_dtype=torch_dtype
    )
    generator = torch.Generator().manual_seed(seed + 1)
    grad_output = torch.randn(pack.total_q, HEADS, VALUE, generator=generator).to(torch_dtype)
    inputs = GroupInputs(
        query=attention.query,
        key=attention.key,
        softmax_scale=SCALE,
        up_v=attention.up_v,
        q_indexer=indexer.q,
        k_indexer=indexer.k,
        weights=indexer.w,
        latent_dim=LATENT,
        dtype=dtype,
    )
    return inputs, grad_output


def loss_spec(**changes):
    defaults = {"coeff": 0.5, "sparse": True, "counted": CountedRows.REAL}
    return LossSpec(**{**defaults, "reduction": LossReduction.GROUP_MEAN, **changes})


def run_group(sequences, *, cp_size, topk=3, seed=0, loss=None, inputs=None, **pack_options):
    """Run a whole group with picks of the exact scorer."""
    pack = pack_sequences(sequences, cp_size=cp_size, **pack_options)
    drawn, grad_output = group_inputs(pack, seed)
    inputs = inputs or drawn
    picks = exact_picks(inputs, pack, topk=topk)
    return group_values(inputs, pack, picks, loss=loss or loss_spec(), grad_output=grad_output)


def with_grad(operands, *names):
    """Return operands whose named tensors are leaves that ask for gradients."""
    leaves = {name: getattr(operands, name).detach().clone().requires_grad_() for name in names}
    return replace(operands, **leaves)
