"""A whole group: what may not depend on CP size, packing or padding, and how losses add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from values_brute import (
    HEADS,
    VALUE,
    brute_attention,
    brute_kl,
    group_inputs,
    keys_of,
    loss_spec,
    run_group,
)

from harness.layout import expand_runs, key_runs, pack_sequences
from harness.reference.attention import attention
from harness.reference.clean_picks import clean_picks
from harness.reference.group_values import exact_picks, group_values, local_rows, packed_rows
from harness.reference.indexer_loss import indexer_kl
from harness.reference.loss_terms import CountedRows, LossReduction, LossSpec
from harness.reference.rank_values import rank_values
from harness.reference.rows import rows_of_rank
from harness.reference.support import Selected, Visible

CLOSE = {"atol": 1e-12, "rtol": 1e-12}
ROWS = ("output", "grad_query", "kl", "grad_q_indexer", "grad_weights")
SHARED = ("key", "up_v", "k_indexer")
SEQUENCES = {"sequences": [13, 8, 0, 6], "padded": [16, 8, 0, 8], "tail_padding": 4}


def run(cp_size, **changes):
    return run_group(SEQUENCES["sequences"], cp_size=cp_size, **{**options(), **changes})


def options():
    return {key: value for key, value in SEQUENCES.items() if key != "sequences"}


def packed(values, name):
    return packed_rows([getattr(rank, name).value for rank in values.ranks], values.pack)


@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("sparse", [True, False])
def test_every_rank_equals_plain_python(cp_size, sparse):
    loss = loss_spec(sparse=sparse, reduction=LossReduction.RANK_MEAN)
    found = run(cp_size, loss=loss)
    inputs, _ = group_inputs(found.pack)
    for cp_rank, rank in enumerate(found.ranks):
        table = rank.table
        operands, indexer = (
            inputs.attention(found.pack, cp_rank),
            inputs.indexer(found.pack, cp_rank),
        )
        selected = Selected.of(rank.picks.ids, num_keys=table.num_keys)
        visible = Visible.of(table.starts, table.limits, num_keys=table.num_keys)
        output, lse = brute_attention(operands, keys_of(selected))
        kl = brute_kl(indexer, operands, keys_of(selected if sparse else visible))
        torch.testing.assert_close(rank.output.value, output, **CLOSE)
        torch.testing.assert_close(rank.lse, lse, **CLOSE)
        torch.testing.assert_close(rank.kl.value, kl, **CLOSE)
        assert float(rank.loss.value) == pytest.approx(0.5 * float(kl[table.valid].mean()))


@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_equal_autograd_of_all_ranks_losses_and_outputs(cp_size, sparse):
    pack = pack_sequences(SEQUENCES["sequences"], cp_size=cp_size, **options())
    inputs, grad_output = group_inputs(pack)
    picks = exact_picks(inputs, pack, topk=3)
    names = ("query", "key", "up_v", "q_indexer", "k_indexer", "weights")
    leaves = {name: getattr(inputs, name).clone().requires_grad_() for name in names}
    live = replace(inputs, **leaves)
    loss = loss_spec(sparse=sparse, reduction=LossReduction.RANK_MEAN, backward_scale=3.0)
    total = torch.zeros((), dtype=torch.float64)
    for cp_rank in range(cp_size):
        table = rows_of_rank(pack, cp_rank)
        operands, indexer = live.attention(pack, cp_rank), live.indexer(pack, cp_rank)
        selected = Selected.of(picks[cp_rank], num_keys=table.num_keys)
        visible = Visible.of(table.starts, table.limits, num_keys=table.num_keys)
        output = attention(operands, selected).output
        total = total + (output * local_rows(grad_output, pack, cp_rank)).sum()
        kl = indexer_kl(indexer, operands, selected if sparse else visible)
        total = total + 3.0 * 0.5 * (kl * table.valid).sum() / int(table.valid.sum())
    expected = dict(zip(names, torch.autograd.grad(total, list(leaves.values())), strict=True))
    found = group_values(inputs, pack, picks, loss=loss, grad_output=grad_output)
    gradients = {
        "query": packed(found, "grad_query"),
        "q_indexer": packed(found, "grad_q_indexer"),
        "weights": packed(found, "grad_weights"),
    } | {name: getattr(found.shared, name).value for name in SHARED}
    for name in names:
        torch.testing.assert_close(gradients[name], expected[name], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("reduction", [LossReduction.SUM, LossReduction.GROUP_MEAN])
def test_the_cp_size_changes_rounding_only(sparse, reduction):
    loss = loss_spec(sparse=sparse, reduction=reduction)
    alone = run(1, loss=loss)
    for cp_size in (2, 4):
        found = run(cp_size, loss=loss)
        for name in ROWS:
            torch.testing.assert_close(packed(found, name), packed(alone, name), **CLOSE)
        for name in SHARED:
            one, other = getattr(found.shared, name), getattr(alone.shared, name)
            torch.testing.assert_close(one.value, other.value, **CLOSE)
            torch.testing.assert_close(one.scale, other.scale, **CLOSE)
            assert (one.partials, other.partials) == (cp_size, 1)
        torch.testing.assert_close(found.loss.value, alone.loss.value, **CLOSE)


def test_keys_after_the_reduce_scatter_are_the_ranks_own():
    found = run(2)
    own = [found.local_keys(cp_rank) for cp_rank in range(2)]
    for name in ("key", "k_indexer"):
        index = torch.tensor([i for r in range(2) for i in expand_runs(key_runs(found.pack, r))])
        total = getattr(found.shared, name)
        for field in ("value", "scale"):
            parts = torch.cat([getattr(getattr(o, name), field) for o in own])
            assert torch.equal(parts, getattr(total, field)[index])
        assert getattr(own[0], name).partials == 2
    assert own[1].up_v is found.shared.up_v


@pytest.mark.parametrize("cp_size", [1, 2])
def test_sequences_alone_equal_sequences_packed(cp_size):
    lengths = [16, 8, 8]
    loss = loss_spec(reduction=LossReduction.SUM)
    together = run_group(lengths, cp_size=cp_size, loss=loss)
    inputs, grad_output = group_inputs(together.pack)
    first, total = 0, 0.0
    for length in lengths:
        part = slice(first, first + length)
        names = ("query", "key", "q_indexer", "k_indexer", "weights")
        own = replace(inputs, **{name: getattr(inputs, name)[part] for name in names})
        pack = pack_sequences([length], cp_size=cp_size)
        picks = exact_picks(own, pack, topk=3)
        alone = group_values(own, pack, picks, loss=loss, grad_output=grad_output[part])
        for name in ROWS:
            torch.testing.assert_close(packed(together, name)[part], packed(alone, name), **CLOSE)
        for name in ("key", "k_indexer"):
            whole = getattr(together.shared, name).value
            torch.testing.assert_close(whole[part], getattr(alone.shared, name).value, **CLOSE)
        total += float(alone.loss.value)
        first += length
    assert float(together.loss.value) == pytest.approx(total, rel=1e-12)


def test_padding_changes_nothing_of_the_real_rows():
    padded = run(2)
    inputs, grad_output = group_inputs(padded.pack)
    real = torch.cat([torch.arange(13), 16 + torch.arange(8), 24 + torch.arange(6)])
    names = ("query", "key", "q_indexer", "k_indexer", "weights")
    own = replace(inputs, **{name: getattr(inputs, name)[real] for name in names})
    pack = pack_sequences([13, 8, 6], cp_size=1)
    picks = exact_picks(own, pack, topk=3)
    upstream = grad_output.clone()
    upstream[~torch.isin(torch.arange(padded.pack.total_q), real)] = 0
    bare = group_values(own, pack, picks, loss=loss_spec(), grad_output=grad_output[real])
    found = group_values(
        inputs,
        padded.pack,
        exact_picks(inputs, padded.pack, topk=3),
        loss=loss_spec(),
        grad_output=upstream,
    )
    for name in ROWS:
        torch.testing.assert_close(packed(found, name)[real], packed(bare, name), **CLOSE)
    for name in ("key", "k_indexer"):
        one, other = getattr(found.shared, name).value, getattr(bare.shared, name).value
        torch.testing.assert_close(one[real], other, **CLOSE)
        rest = torch.ones(one.shape[0], dtype=torch.bool)
        rest[real] = False
        assert one[rest].eq(0).all()
    torch.testing.assert_close(found.loss.value, bare.loss.value, **CLOSE)


def test_tail_rows_yield_nothing():
    found = run(2)
    for rank in found.ranks:
        tail = rank.table.limits == 0
        assert int(tail.sum()) == 2
        for name in ROWS:
            assert getattr(rank, name).value[tail].eq(0).all()
        assert rank.lse[tail].eq(-torch.inf).all()


# Rank 1 of 2 holds padding alone: one sequence of 2 real tokens in 8 rows. Rank 0 has rows 0, 1, 6,
# 7 and rank 1 rows 2 to 5.
PADDED_RANK = {"sequences": [2], "padded": [8], "cp_size": 2}


def padded_rank(**changes):
    return run_group(**PADDED_RANK, loss=loss_spec(**changes))


def test_a_rank_of_padding_contributes_nothing_and_keeps_the_group_mean():
    found = padded_rank()
    assert [int(rank.table.valid.sum()) for rank in found.ranks] == [2, 0]
    idle = found.ranks[1]
    assert idle.kl.value.gt(0).any()
    for value in (idle.loss, idle.grad_q_indexer, idle.grad_weights):
        assert value.value.eq(0).all()
    kl = found.ranks[0].kl.value[found.ranks[0].table.valid]
    assert float(found.loss.value) == pytest.approx(0.5 * float(kl.mean()))


def test_the_average_over_ranks_is_diluted_by_a_rank_of_padding():
    """What Megatron logs then is half of the mean over real tokens; its gradient is not."""
    group = padded_rank()
    diluted = padded_rank(reduction=LossReduction.RANK_MEAN)
    torch.testing.assert_close(diluted.loss.value, group.loss.value / 2)
    torch.testing.assert_close(diluted.ranks[0].loss.value, group.ranks[0].loss.value)
    torch.testing.assert_close(diluted.shared.k_indexer.value, group.shared.k_indexer.value)


def test_reductions_on_a_group_of_unequal_ranks():
    runs = {reduction: run(4, loss=loss_spec(reduction=reduction)) for reduction in LossReduction}
    kl = [rank.kl.value[rank.table.valid] for rank in runs[LossReduction.SUM].ranks]
    counts = [part.numel() for part in kl]
    assert len(set(counts)) > 1
    sums = [float(part.sum()) for part in kl]
    expected = {
        LossReduction.SUM: (sums, sum(sums)),
        LossReduction.RANK_MEAN: (
            [s / n for s, n in zip(sums, counts, strict=True)],
            sum(s / n for s, n in zip(sums, counts, strict=True)) / 4,
        ),
        LossReduction.GROUP_MEAN: (
            [s / sum(counts) for s in sums],
            sum(sums) / sum(counts),
        ),
    }
    for reduction, (ranks, group) in expected.items():
        found = runs[reduction]
        assert [float(r.loss.value) for r in found.ranks] == pytest.approx([0.5 * x for x in ranks])
        assert float(found.loss.value) == pytest.approx(0.5 * group)
    # The gradient of a rank is that of its own loss.
    one, other = runs[LossReduction.SUM], runs[LossReduction.RANK_MEAN]
    for rank, mean, count in zip(one.ranks, other.ranks, counts, strict=True):
        torch.testing.assert_close(rank.grad_weights.value / count, mean.grad_weights.value)


def test_counting_all_rows_takes_padding_in():
    real = run(2, loss=loss_spec(reduction=LossReduction.SUM))
    every = run(2, loss=loss_spec(reduction=LossReduction.SUM, counted=CountedRows.ALL))
    mean = run(2, loss=loss_spec(reduction=LossReduction.RANK_MEAN, counted=CountedRows.ALL))
    assert every.loss.value > real.loss.value * 1.01
    for all_rows, rank_mean in zip(every.ranks, mean.ranks, strict=True):
        kl = all_rows.kl.value
        assert float(all_rows.loss.value) == pytest.approx(0.5 * float(kl.sum()))
        # Tail rows add 0 but count.
        assert float(rank_mean.loss.value) == pytest.approx(0.5 * float(kl.mean()))


def test_coefficient_0_and_no_loss():
    found = run(2, loss=loss_spec(coeff=0.0))
    assert float(found.loss.value) == 0
    assert found.shared.k_indexer.value.eq(0).all()
    for rank in found.ranks:
        assert rank.grad_q_indexer.value.eq(0).all()
        assert rank.grad_weights.value.eq(0).all()
        assert rank.kl.value.gt(0).any()
    pack = found.pack
    inputs, grad_output = group_inputs(pack)
    picks = exact_picks(inputs, pack, topk=3)
    none = group_values(inputs, pack, picks, grad_output=grad_output)
    assert none.loss is None and none.shared.k_indexer is None and none.ranks[0].kl is None
    assert torch.equal(none.shared.key.value, found.shared.key.value)
    forward = group_values(inputs, pack, picks)
    assert forward.shared.key is None and forward.ranks[0].grad_query is None
    assert torch.equal(forward.ranks[1].output.value, found.ranks[1].output.value)


def test_backward_scale_multiplies_gradients_and_not_the_loss():
    one, other = run(2), run(2, loss=loss_spec(backward_scale=4.0))
    torch.testing.assert_close(one.loss.value, other.loss.value)
    torch.testing.assert_close(4 * one.shared.k_indexer.value, other.shared.k_indexer.value)
    torch.testing.assert_close(one.shared.key.value, other.shared.key.value)


def test_unclean_picks_are_cleaned_and_counted():
    found = run(2)
    inputs, grad_output = group_inputs(found.pack)
    picks = list(exact_picks(inputs, found.pack, topk=3))
    table = found.ranks[0].table
    row = int((table.limits == 1).nonzero()[0])
    assert picks[0][row].tolist() == [int(table.starts[row]), -1, -1]
    dirty = picks[0].clone()
    # Its own key twice, and a key of the future.
    dirty[row] = torch.tensor([dirty[row, 0], dirty[row, 0], dirty[row, 0] + 1])
    again = group_values(
        inputs, found.pack, [dirty, picks[1]], loss=loss_spec(), grad_output=grad_output
    )
    clean = again.ranks[0].picks
    assert (int(clean.invisible.sum()), int(clean.repeated.sum())) == (1, 1)
    assert (int(clean.invisible[row]), int(clean.repeated[row])) == (1, 1)
    assert torch.equal(again.ranks[0].output.value, found.ranks[0].output.value)
    assert torch.equal(again.shared.key.value, found.shared.key.value)


def test_cleaning_keeps_slots_in_place():
    pack = pack_sequences([4, 4], cp_size=1)
    table = rows_of_rank(pack, 0)
    picks = torch.full((8, 5), -7)
    picks[7] = torch.tensor([6, 3, 6, 99, 4])
    clean = clean_picks(picks, table)
    assert clean.ids[7].tolist() == [6, -1, -1, -1, 4]
    assert clean.ids[:7].eq(-1).all()
    assert clean.invisible.tolist() == [0] * 7 + [2]
    assert clean.repeated.tolist() == [0] * 7 + [1]
    sample = table.take(torch.tensor([7, 3]))
    assert clean_picks(picks, sample).invisible.tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"picks must be \(8 local rows, slots\) integers"):
        clean_picks(picks[:7], table)


def test_exact_picks_leave_padding_out_on_request():
    pack = pack_sequences([13], cp_size=2, padded=[16])
    inputs, _ = group_inputs(pack)
    picks = exact_picks(inputs, pack, topk=3)
    real = exact_picks(inputs, pack, topk=3, counted=CountedRows.REAL)
    for cp_rank in range(2):
        table = rows_of_rank(pack, cp_rank)
        assert torch.equal(picks[cp_rank][table.valid], real[cp_rank][table.valid])
        assert picks[cp_rank][~table.valid].ge(0).all()
        assert real[cp_rank][~table.valid].eq(-1).all()


def test_a_sample_of_rows_gives_their_outputs_alone():
    found = run(2)
    inputs, _ = group_inputs(found.pack)
    picks = exact_picks(inputs, found.pack, topk=3)
    table = rows_of_rank(found.pack, 1).take(torch.tensor([0, 5, 17]))
    assert table.is_sample
    operands = inputs.attention(found.pack, 1)
    values, shared = rank_values(operands, table, picks[1])
    torch.testing.assert_close(
        values.output.value, found.ranks[1].output.take(table.row).value, **CLOSE
    )
    assert shared.key is None
    upstream = torch.zeros(len(table), HEADS, VALUE)
    with pytest.raises(ValueError, match=r"but loss and gradients sum over all rows of a rank"):
        rank_values(operands, table, picks[1], grad_output=upstream)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(35, 2, 5)}, r"query has 35 rows but the pack has 36"),
        ({"key": torch.zeros(35, 5)}, r"key has 35 rows but the pack has 36"),
        ({"weights": None}, r"q_indexer, k_indexer and weights go together"),
    ],
)
def test_inputs_of_another_pack_are_refused(change, message):
    pack = pack_sequences(SEQUENCES["sequences"], cp_size=2, **options())
    inputs, _ = group_inputs(pack)
    picks = exact_picks(inputs, pack, topk=3)
    with pytest.raises(ValueError, match=message):
        group_values(replace(inputs, **change), pack, picks, loss=loss_spec())
    with pytest.raises(ValueError, match=r"picks must be of 2 ranks, found 1"):
        group_values(inputs, pack, picks[:1])


def test_a_loss_without_an_indexer_is_refused():
    pack = pack_sequences([8], cp_size=1)
    inputs, _ = group_inputs(pack)
    picks = exact_picks(inputs, pack, topk=3)
    bare = replace(inputs, q_indexer=None, k_indexer=None, weights=None)
    with pytest.raises(ValueError, match=r"a loss needs the indexer's operands"):
        group_values(bare, pack, picks, loss=loss_spec())
    with pytest.raises(ValueError, match=r"selecting needs q_indexer"):
        exact_picks(bare, pack, topk=3)
    for coeff in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=r"coeff must be finite and at least 0"):
            LossSpec(coeff=coeff, sparse=True)
