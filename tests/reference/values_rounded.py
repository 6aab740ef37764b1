"""A group's values as bf16 kernels compute them: exact products, rounded where kernels round.

P, the latent, its gradient, dS and every result are rounded to bf16; sums are fp32. Shared
gradients are rounded on each rank and added up in bf16, as a reduce-scatter does. Faults can be
planted, each the kind of mistake a build makes. Nothing here is shared with ``harness.reference``
but the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.reference.group_values import local_rows, packed_rows
from harness.reference.rows import rows_of_rank


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What the build gets wrong; nothing by default."""

    scale_factor: float = 1.0
    empty_slots_are_key_0: bool = False
    drops_key_gradient_of_rank: int | None = None
    drops_delta: bool = False
    swaps_heads: bool = False
    ignores_relu_in_backward: bool = False
    target_of_one_head: bool = False
    mean_over_all_rows: bool = False
    last_row_attends_one_key_less: bool = False


def rounding(dtype):
    def rounded(tensor):
        return tensor.to(dtype).float()

    return rounded


def run_rank(inputs, pack, cp_rank, picks, grad_output, coeff, faults, dtype):
    """Return one rank's values by name, rows in local order."""
    rounded = rounding(dtype)
    table = rows_of_rank(pack, cp_rank)
    q = local_rows(inputs.query, pack, cp_rank).float()
    key = inputs.key.float()
    ids = picks[cp_rank].clone()
    if faults.last_row_attends_one_key_less:
        row = int(table.valid.nonzero()[-1])
        ids[row, int((ids[row] >= 0).nonzero()[-1])] = -1
    mask = ids >= 0
    if faults.empty_slots_are_key_0:
        mask = torch.ones_like(mask)
    ids = ids.clamp(min=0)
    keys = key[ids]
    values = keys[..., : inputs.latent_dim]
    scale = inputs.softmax_scale * faults.scale_factor
    logits = torch.einsum("rhd,rnd->rhn", q, keys) * scale
    logits = logits.masked_fill(~mask[:, None], -1e30)
    p = torch.softmax(logits, 2) * mask.any(1)[:, None, None] * mask[:, None]
    latent = rounded(torch.einsum("rhn,rnc->rhc", rounded(p), values))
    up_v = inputs.up_v.float()
    if faults.swaps_heads:
        up_v = up_v.flip(0)
    output = rounded(torch.einsum("rhc,hvc->rhv", latent, up_v))
    upstream = local_rows(grad_output, pack, cp_rank).float()
    grad = rounded(torch.einsum("rhv,hvc->rhc", upstream, up_v))
    delta = (grad * latent).sum(2, keepdim=True)
    if faults.drops_delta:
        delta = delta * 0
    ds = rounded(p * (torch.einsum("rhc,rnc->rhn", grad, values) - delta))
    grad_query = rounded(torch.einsum("rhn,rnd->rhd", ds, keys) * scale)
    grad_keys = torch.einsum("rhn,rhd->rnd", ds, q) * scale
    grad_keys[..., : inputs.latent_dim] += torch.einsum("rhn,rhc->rnc", rounded(p), grad)
    grad_keys = grad_keys * mask[..., None]
    grad_key = torch.zeros_like(key).index_add(0, ids.flatten(), grad_keys.flatten(0, 1))
    if faults.drops_key_gradient_of_rank == cp_rank:
        grad_key = grad_key * 0
    found = {
        "attention_output": output,
        "grad.query": grad_query,
        "grad.key": rounded(grad_key),
        "grad.up_v": rounded(torch.einsum("rhv,rhc->hvc", upstream, latent)),
    }
    return found | _indexer(inputs, pack, cp_rank, (p, ids, mask), coeff, faults, rounded)


def _indexer(inputs, pack, cp_rank, attended, coeff, faults, rounded):
    p, ids, mask = attended
    table = rows_of_rank(pack, cp_rank)
    q, w = (local_rows(t, pack, cp_rank).float() for t in (inputs.q_indexer, inputs.weights))
    keys = inputs.k_indexer.float()[ids]
    products = torch.einsum("rhd,rnd->rhn", q, keys)
    scores = torch.einsum("rhn,rh->rn", products.relu(), w).masked_fill(~mask, -1e30)
    log_predicted = torch.log_softmax(scores, 1)
    target = p[:, 0] if faults.target_of_one_head else p.sum(1)
    target = target / target.sum(1, keepdim=True).clamp_min(1e-10)
    kl = (target * (target.clamp_min(1e-10).log() - log_predicted) * mask).sum(1)
    counted = torch.ones_like(table.valid) if faults.mean_over_all_rows else table.valid
    weights = counted * (coeff / max(1, int(counted.sum())))
    ds = rounded((log_predicted.exp() - target) * mask) * weights[:, None]
    grads = ds[:, None] * w[..., None]
    if not faults.ignores_relu_in_backward:
        grads = grads * (products > 0)
    grad_keys = torch.einsum("rhn,rhd->rnd", grads, q)
    grad_k = torch.zeros_like(inputs.k_indexer, dtype=torch.float32)
    return {
        "indexer_loss": (kl * weights).sum(),
        "grad.q_indexer": rounded(torch.einsum("rhn,rnd->rhd", grads, keys)),
        "grad.weights": rounded(torch.einsum("rn,rhn->rh", ds, products.relu())),
        "grad.k_indexer": rounded(grad_k.index_add(0, ids.flatten(), grad_keys.flatten(0, 1))),
    }


SHARED = ("grad.key", "grad.k_indexer", "grad.up_v")


def run_rounded(inputs, pack, picks, grad_output, *, coeff, faults=None, dtype=torch.bfloat16):
    """Return the group's values by name: rows in packed order, shared gradients summed."""
    faults = faults or Faults()
    ranks = [
        run_rank(inputs, pack, rank, picks, grad_output, coeff, faults, dtype)
        for rank in range(pack.cp_size)
    ]
    result = {}
    for name in ranks[0]:
        parts = [rank[name] for rank in ranks]
        if name == "indexer_loss":
            result[name] = torch.stack(parts).mean()
        elif name in SHARED:
            total = parts[0]
            for part in parts[1:]:
                total = (total + part).to(dtype).float()
            result[name] = total
        else:
            result[name] = packed_rows(parts, pack)
    return result
