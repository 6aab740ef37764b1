"""Sparse score recompute: formulas, invalid slots, widths and the slot arithmetic of SM100."""

import pytest
import torch
from kernel_inputs import int32
from recompute_inputs import full_lengths, inputs, reference, run, sums
from training_inputs import error, having, pairs, without

from harness.kernels import (
    ARCHES,
    AddressFault,
    CompileFailure,
    cuda_like,
    modelled_namespace,
)

INF = float("inf")
AMONG = ("1.24.0", "1.26.0", "1.31.0", "1.32.0")
PAIRS = pairs(*AMONG)
every_release = pytest.mark.parametrize(("version", "arch"), PAIRS)
every_kind = pytest.mark.parametrize("kind", ["attention", "indexer"])


def runnable(version, kind, lengths):
    """SM100 cannot compile the compact attention kernel before 1.26 (d317)."""
    return version >= "1.26.0" or kind == "indexer" or lengths is None


@pytest.mark.parametrize("with_lengths", [True, False])
@every_kind
@every_release
def test_targets_and_predictions(version, arch, kind, with_lengths):
    tensors = inputs(batch=2, kind=kind)
    lengths = full_lengths(tensors[3]) if with_lengths else None
    namespace = modelled_namespace(version, arch)
    if arch == "sm100" and not runnable(version, kind, lengths):
        with pytest.raises(CompileFailure, match="lengths"):
            run(namespace, kind, tensors, lengths)
        namespace = without(version, arch, "d317")
    result = run(namespace, kind, tensors, lengths)
    torch.testing.assert_close(
        result.double(), reference(kind, *tensors), rtol=1e-4, atol=1e-7, check_dtype=False
    )
    batch = torch.arange(2, dtype=torch.int32).view(2, 1, 1) * 40
    ids = torch.where(tensors[3] < 0, -1, tensors[3] + batch)
    wide = run(namespace, kind, (*tensors[:3], ids), lengths, topk_indices_global=True)
    assert torch.equal(wide, result)


@pytest.mark.parametrize(("heads", "depth"), [(128, 576), (128, 512), (64, 512), (16, 576)])
@pytest.mark.parametrize("arch", ARCHES)
def test_targets_of_other_shapes(arch, heads, depth):
    tensors = inputs(heads=heads, depth=depth)
    result = run(modelled_namespace(arch=arch), "attention", tensors, full_lengths(tensors[3]))
    assert error(result, reference("attention", *tensors)) < 1e-5


def test_rows_in_several_chunks(monkeypatch):
    tensors = inputs(batch=2)
    whole = run(modelled_namespace(), "attention", tensors)
    monkeypatch.setattr("harness.kernels.sparse_score_recompute._CHUNK_BYTES", 1 << 19)
    torch.testing.assert_close(run(modelled_namespace(), "attention", tensors), whole)


# Lengths


@pytest.mark.parametrize("length", [-1, 0, 1, 30])
@every_kind
@pytest.mark.parametrize("arch", ARCHES)
def test_slots_behind_the_length_are_nothing(arch, kind, length):
    tensors = inputs(rows=2, kind=kind)
    result = run(modelled_namespace(arch=arch), kind, tensors, int32(length, 30).view(1, 2))
    assert (result[0, 0, max(length, 0) :] == 0).all()
    assert int((result[0, 0] > 0).sum()) == max(length, 0)
    assert float(result[0].sum(1)[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_length_above_the_slots_reads_ids_of_the_next_row(arch):
    tensors = inputs(rows=2, used=40)
    namespace = modelled_namespace(arch=arch)
    run(without("1.32.0", arch, "invalid_slots"), "attention", tensors, int32(129, 1).view(1, 2))
    full = (*tensors[:3], tensors[3].clamp(min=0))
    run(namespace, "attention", full, int32(129, 1).view(1, 2))
    assert [(f.operand, f.row, f.index) for f in namespace.findings] == [("topk_indices", 0, 128)]
    with pytest.raises(AddressFault) as caught:
        run(namespace, "attention", full, int32(1, 129).view(1, 2))
    assert caught.value.evidence.klass == "past_allocation"
    healthy = without("1.32.0", arch, "long_topk_lengths")
    run(healthy, "attention", full, int32(1, 129).view(1, 2))
    assert healthy.findings == []


# d1549: plain and compact kernel of the same tile


PLAIN = {"heads": 128, "depth": 512}


@pytest.mark.parametrize(("version", "arch"), having("d1549", ("1.26.0", "1.32.0")))
def test_lengths_are_ignored_where_the_tiles_coincide(version, arch):
    q, k, lse, ids = inputs(rows=2, used=40, **PLAIN)
    lengths = int32(10, 40).view(1, 2)
    result = run(modelled_namespace(version, arch), "attention", (q, k, lse, ids), lengths)
    assert torch.equal(
        result, run(modelled_namespace(version, arch), "attention", (q, k, lse, ids))
    )
    assert int((result[0, 0] > 0).sum()) == 40
    healthy = run(without(version, arch, "d1549"), "attention", (q, k, lse, ids), lengths)
    assert int((healthy[0, 0] > 0).sum()) == 10


@pytest.mark.parametrize(
    ("heads", "depth", "slots", "ignored"),
    [
        (64, 576, 128, False),
        (64, 512, 128, False),
        (128, 576, 128, False),
        (128, 512, 512, True),
        (128, 512, 640, False),
        (32, 576, 128, True),
        (96, 576, 128, True),
    ],
)
def test_which_shapes_lose_their_lengths(heads, depth, slots, ignored):
    tensors = inputs(rows=1, heads=heads, depth=depth, slots=slots, used=40)
    result = run(modelled_namespace(), "attention", tensors, int32(10).view(1, 1))
    assert int((result > 0).sum()) == (40 if ignored else 10)


# invalid_slots


def spoiled(invalid, kind, batch=2, rows=2):
    tensors = inputs(batch=batch, rows=rows, kind=kind)
    ids = tensors[3].clone()
    ids[0, 0, 3] = invalid
    return (*tensors[:3], ids)


@pytest.mark.parametrize("invalid", [-1, -(2**31), 40, 2 * 40])
@every_kind
@pytest.mark.parametrize(("version", "arch"), having("invalid_slots", ("1.24.0", "1.32.0")))
def test_invalid_slots_without_lengths(version, arch, kind, invalid):
    """A negative id is nothing; one past the keys is a zero key, or stale memory, and counts."""
    tensors = spoiled(invalid, kind)
    result = run(modelled_namespace(version, arch, seed=1), kind, tensors)
    expected = reference(kind, *tensors)
    if invalid < 0:
        assert error(result, expected) < 1e-5
        return
    assert result[0, 0, 3] > 0
    assert error(result[0, 0], expected[0, 0]) > 1e-3
    assert error(result[0, 1:], expected[0, 1:]) < 1e-5
    other = run(modelled_namespace(version, arch, seed=2), kind, tensors)
    assert torch.equal(other, result) == (arch == "sm90"), "only stale memory is random"
    healthy = run(without(version, arch, "invalid_slots"), kind, tensors)
    assert error(healthy, expected) < 1e-5


@pytest.mark.parametrize("invalid", [-1, 40])
@every_kind
def test_zero_keys_of_sm90_are_counted_below_the_length(kind, invalid):
    q, k, per_head, ids = spoiled(invalid, kind)
    result = run(
        modelled_namespace("1.32.0", "sm90"), kind, (q, k, per_head, ids), full_lengths(ids)
    )
    if invalid == -1:
        result = run(
            modelled_namespace("1.32.0", "sm90"), kind, (q, k, per_head, ids), full_lengths(ids) + 1
        )
    chosen = k[0][ids[0, 0, :30].clamp(0, 39).long()].clone()
    chosen[3] = 0
    made = sums(kind, q[0, 0], chosen, per_head[0, 0])
    assert error(result[0, 0, :30], made / made.sum()) < 1e-5


def test_the_compact_kernel_reads_addresses_it_never_checked():
    q, k, lse, ids = spoiled(45, "attention")
    namespace = modelled_namespace("1.32.0")
    result = run(namespace, "attention", (q, k, lse, ids), full_lengths(ids))
    assert [(f.operand, f.row, f.index, f.klass) for f in namespace.findings] == [
        ("keys", 0, 3, "wrong_row")
    ]
    made = sums("attention", q[0, 0], k.flatten(0, 1)[ids[0, 0, :30].long()], lse[0, 0])
    assert error(result[0, 0, :30], made / made.sum()) < 1e-5, "another batch's key took part"
    for batch, invalid in ((0, -1), (1, 40)):
        wrong = ids.clone()
        wrong[0, 0, 3] = 0
        wrong[batch, 0, 3] = invalid
        lengths = torch.full((2, 2), 30, dtype=torch.int32)
        with pytest.raises(AddressFault) as caught:
            run(namespace, "attention", (q, k, lse, wrong), lengths)
        assert caught.value.evidence.klass == "past_allocation"
    healthy = without("1.32.0", "sm100", "invalid_slots")
    run(healthy, "attention", (q, k, lse, ids), full_lengths(ids))
    assert healthy.findings == []


def test_the_compact_indexer_kernel_checks_and_shows_stale_memory():
    tensors = spoiled(40, "indexer")
    lengths = full_lengths(tensors[3])
    results = [run(modelled_namespace(seed=seed), "indexer", tensors, lengths) for seed in (1, 2)]
    assert not torch.equal(*results)
    assert all(result[0, 0, 3] > 0 for result in results)


@every_kind
@pytest.mark.parametrize("arch", ARCHES)
def test_a_row_without_any_id_is_zero(arch, kind):
    q, k, per_head, ids = inputs(rows=2, kind=kind)
    ids[0, 0] = -1
    result = run(modelled_namespace(arch=arch), kind, (q, k, per_head, ids))
    assert (result[0, 0] == 0).all()


def test_normalisers_differ_for_vanishing_sums():
    """SM90 adds 1e-10 to the sum; SM100 gives zeros at or below it."""
    q, k, lse, ids = inputs(rows=2)
    small = lse + 40
    assert (run(modelled_namespace(), "attention", (q, k, small, ids)) == 0).all()
    target = run(modelled_namespace(arch="sm90"), "attention", (q, k, small, ids))
    assert 0 < float(target.sum(-1).max()) < 1e-3


# Heads, single rows, refusals


@pytest.mark.parametrize("heads", [16, 32, 48, 64, 96, 128])
@pytest.mark.parametrize(
    ("version", "arch"), [(v, a) for v in ("1.31.0", "1.32.0") for a in ARCHES]
)
def test_head_counts(version, arch, heads):
    tensors = inputs(rows=2, heads=heads)
    refused = None
    if heads == 96 and version == "1.31.0":
        refused = AssertionError if arch == "sm90" else ValueError
    if heads == 48 and arch == "sm100":
        refused = ValueError
    if refused is None:
        result = run(modelled_namespace(version, arch), "attention", tensors)
        assert error(result, reference("attention", *tensors)) < 1e-5
    else:
        with pytest.raises(refused):
            run(modelled_namespace(version, arch), "attention", tensors)


def test_columns_of_the_matrix_unit():
    with pytest.raises(CompileFailure, match="multiples of 8") as caught:
        run(modelled_namespace(), "attention", inputs(heads=12))
    assert caught.value.kernel == "sparse_attn_score_recompute_wrapper"
    assert caught.value.key[:3] == (576, 12, 128)


@every_kind
def test_a_single_row_on_sm90(kind):
    tensors = inputs(rows=1, kind=kind)
    with pytest.raises(RuntimeError, match="single query row"):
        run(modelled_namespace("1.32.0", "sm90"), kind, tensors)
    healthy = run(without("1.32.0", "sm90", "single_row"), kind, tensors)
    assert error(healthy, reference(kind, *tensors)) < 1e-5


@every_kind
@every_release
def test_refusals(version, arch, kind):
    namespace = modelled_namespace(version, arch)
    q, k, per_head, ids = inputs(kind=kind)
    for tensors, keywords in (
        ((q.float(), k, per_head, ids), {}),
        ((q, k, per_head.half(), ids), {}),
        ((q, k, per_head, ids.float()), {})
        if version < "1.32.0"
        else ((q[0], k, per_head, ids), {}),
        ((q, k[..., :64], per_head, ids), {}),
        ((q, k, per_head, ids[:, :2]), {}),
        ((q, k, per_head, ids), {"qhead_per_kv_head": 32}),
        ((q, k, per_head, ids), {"topk_length": int32(1, 2)}),
        ((q, k, per_head, ids), {"out": torch.zeros(1, 3, 127)}),
    ):
        with pytest.raises(ValueError):
            run(namespace, kind, tensors, **keywords)
    if version < "1.32.0":
        with pytest.raises(ValueError, match="topk_indices"):
            run(namespace, kind, (q, k, per_head, ids.long()))
    else:
        run(namespace, kind, (q, k, per_head, ids.long()), full_lengths(ids).long())


def test_results_are_wrapped_like_q():
    q, k, lse, ids = inputs()
    assert run(modelled_namespace(), "attention", (cuda_like(q), k, lse, ids)).is_cuda
