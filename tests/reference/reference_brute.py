"""Brute force over plain Python numbers: what the tests compare ``harness.reference`` with."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from dataclasses import dataclass

import torch

from harness.layout import pack_sequences
from harness.reference.operands import MARGIN_UNIT, Operands
from harness.reference.rows import RowTable, rows_of_rank
from harness.reference.selection import judge_selection
from harness.reference.site import Site

SITE = Site(global_rank=1, cp_rank=0, microbatch=2, layer=3, seed=4)


@dataclass
class Case:
    """One rank's table and operands, with every score as a Python number."""

    table: RowTable
    operands: Operands
    topk: int

    def __post_init__(self):
        q, k, w = (t.double() for t in (self.operands.q, self.operands.k, self.operands.w))
        products = torch.einsum("rhd,nd->rhn", q, k).clamp(min=0)
        self.scores = torch.einsum("rhn,rh->rn", products, w).tolist()
        self.q, self.k, self.w = q.tolist(), k.tolist(), w.tolist()


def brute_score(q, key, w):
    total = 0.0
    for q_h, w_h in zip(q, w, strict=True):
        total += max(0.0, math.fsum(a * b for a, b in zip(q_h, key, strict=True))) * w_h
    return total


def make_case(
    sequences,
    *,
    cp_size=2,
    cp_rank=0,
    topk=4,
    seed=0,
    kind="integers",
    heads=2,
    dim=4,
    dtype="fp32",
    **pack_options,
):
    """Build a rank's operands; kinds: integers (many exact ties), zeros (none above 0), normal."""
    pack = pack_sequences(sequences, cp_size=cp_size, **pack_options)
    table = rows_of_rank(pack, cp_rank)
    generator = torch.Generator().manual_seed(seed)
    shapes = ((len(table), heads, dim), (pack.total_k, dim), (len(table), heads))
    if kind == "normal":
        q, k, w = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    else:
        q, k, w = (torch.randint(-2, 3, s, generator=generator).bfloat16() for s in shapes)
        if kind == "zeros":
            q, k = -q.abs(), k.abs()
    exact = kind != "normal"
    operands = Operands(q=q, k=k, w=w, dtype=dtype, exact_arithmetic=exact)
    return Case(table=table, operands=operands, topk=topk)


def facts_of(case, index):
    """Return (local row, start, limit, length, valid) of a row of the table."""
    table = case.table
    columns = (table.row, table.starts, table.limits, table.key_lengths, table.valid)
    return tuple(column[index].item() for column in columns)


def cut_of(case, index, limit=None):
    """Return (threshold, margin by key, keys clearly above, keys level) of a row with a cut."""
    row, start, full_limit, _, _ = facts_of(case, index)
    limit = full_limit if limit is None else limit
    scores = case.scores[row][start : start + limit]
    threshold = sorted(scores, reverse=True)[case.topk - 1]
    unit = 0.0 if case.operands.exact_arithmetic else MARGIN_UNIT
    weight = sum(
        abs(w) * math.sqrt(sum(x * x for x in q))
        for q, w in zip(case.q[row], case.w[row], strict=True)
    )
    norms = [math.sqrt(sum(x * x for x in case.k[start + key])) for key in range(limit)]
    cut_norm = max(norms[key] for key in range(limit) if scores[key] == threshold)
    margin = [unit * weight * max(norm, cut_norm) for norm in norms]
    above = {key for key in range(limit) if scores[key] - margin[key] > threshold}
    level = {key for key in range(limit) if scores[key] >= threshold - margin[key]} - above
    return threshold, margin, above, level


def right_picks(case, index, rng=None, limit=None):
    """Return a right selection of a row; ties go to lower keys, or by ``rng``."""
    row, start, full_limit, _, _ = facts_of(case, index)
    limit = full_limit if limit is None else limit
    order = list(range(limit))
    if rng is not None:
        rng.shuffle(order)
    order.sort(key=lambda key: -case.scores[row][start + key])
    picks = [start + key for key in order[: case.topk]]
    return picks + [-1] * (case.topk - len(picks))


def judge_row(case, index, picks):
    """Return the counts of one row, by trying every selection that would be right."""
    row, start, limit, length, valid = facts_of(case, index)
    counts = dict.fromkeys(("exact_or_tie", "below", "future", "foreign", "missing"), 0)
    counts |= {"duplicate": 0, "out_of_range": 0, "exact": 0, "due": 0}
    visible = []
    for pick in picks:
        if pick == -1:
            continue
        if not 0 <= pick < case.table.num_keys:
            counts["out_of_range"] += 1
        elif not start <= pick < start + length:
            counts["foreign"] += 1
        elif not valid:
            continue
        elif pick >= start + limit:
            counts["future"] += 1
        elif pick - start in visible:
            counts["duplicate"] += 1
        else:
            visible.append(pick - start)
    if not valid:
        return counts
    due = min(case.topk, limit)
    if limit <= case.topk:
        best = exact = len(visible)
    else:
        _, _, above, level = cut_of(case, index)
        choices = itertools.combinations(sorted(level), due - len(above))
        best = max(len((above | set(choice)) & set(visible)) for choice in choices)
        lowest = sorted(range(limit), key=lambda key: (-case.scores[row][start + key], key))
        exact = len(set(lowest[:due]) & set(visible))
    counts |= {"due": due, "exact_or_tie": best, "exact": exact, "below": len(visible) - best}
    counts["missing"] = max(0, due - len(visible))
    return counts


def all_right(case, seed=None):
    """Return a right selection of every row, (rows, topk)."""
    rng = None if seed is None else random.Random(seed)
    rows = [right_picks(case, i, rng) for i in range(len(case.table))]
    return torch.tensor(rows, dtype=torch.int64)


def top_left_kernel(case, *, rows_per_call=None, masked="kept", seed=0):
    """Select as a kernel does that masks top-left inside each call and is told absolute lengths.

    Row i of a call has finite scores for its sequence's first i + 1 keys only; what is masked ties
    at -inf, and any of it may be picked up to the row's length.
    """
    rng = random.Random(seed)
    rows = []
    for index in range(len(case.table)):
        row, start, limit, _, _ = facts_of(case, index)
        in_call = int(case.table.row_in_segment[index])
        if rows_per_call is not None:
            in_call %= rows_per_call
        window = min(in_call + 1, limit)
        order = list(range(limit))
        rng.shuffle(order)
        order.sort(key=lambda key: -case.scores[row][start + key] if key < window else math.inf)
        keys = order[: case.topk]
        if masked == "dropped":
            keys = [key for key in keys if key < window]
        picks = [start + key for key in keys]
        rng.shuffle(picks)
        rows.append(picks + [-1] * (case.topk - len(picks)))
    return torch.tensor(rows, dtype=torch.int64)


def judge(case, picks, table=None):
    table = case.table if table is None else table
    return judge_selection(picks, case.operands, table, topk=case.topk)


def scramble(case, picks, rng):
    """Overwrite some slots with anything a broken kernel might leave there."""
    picks = picks.clone()
    num_keys = case.table.num_keys
    for row in range(picks.shape[0]):
        for slot in range(picks.shape[1]):
            if rng.random() < 0.3:
                any_key = rng.randrange(num_keys)
                sentinels = [-1, -2, num_keys, 2**31 - 1, int(picks[row, 0])]
                picks[row, slot] = rng.choice([any_key, any_key, *sentinels])
    return picks


def evidence(case, picks, table=None):
    return judge(case, picks, table).evidence(SITE, stage="final")


def one_row(scores, *, topk, exact=True, norms=None):
    """Make the last row of a sequence see keys of exactly these scores (one head, q = w = 1)."""
    case = make_case([len(scores)], cp_size=1, topk=topk, heads=1, dim=2)
    keys = torch.tensor([[score, 0.0] for score in scores])
    if norms is not None:
        keys[:, 1] = torch.tensor(norms)
    q = torch.tensor([1.0, 0.0]).expand(len(scores), 1, 2)
    case.operands = Operands(q=q, k=keys, w=torch.ones(len(scores), 1), exact_arithmetic=exact)
    case.table = case.table.take(torch.tensor([len(scores) - 1]))
    return case


def judge_last(case, row_picks):
    picks = torch.full((case.table.num_local_rows, len(row_picks)), -1)
    picks[-1] = torch.tensor(row_picks)
    return judge(case, picks).evidence(SITE, stage="final").total


def any_picks(case, seed):
    rng = random.Random(seed)
    return scramble(case, all_right(case, seed), rng)


def whole(stats):
    """Return stats with exact and tie as one number."""
    return dataclasses.replace(stats, exact=stats.exact + stats.tie, tie=0)
