"""Dense score recompute: formulas, and what each release leaves in masked cells."""

import pytest
import torch
from kernel_inputs import exact, int32, prefix
from training_inputs import pairs, without

from harness.kernels import (
    ARCHES,
    RELEASES,
    AddressFault,
    CompileFailure,
    NotModelledError,
    cuda_like,
    modelled_namespace,
)
from harness.kernels.poison import is_poison

INF = float("inf")
AMONG = ("1.24.0", "1.25.0", "1.26.0", "1.30.0", "1.32.0")
PAIRS = pairs(*AMONG)
every_release = pytest.mark.parametrize(("version", "arch"), PAIRS)
KINDS = ("attention", "indexer")
every_kind = pytest.mark.parametrize("kind", KINDS)


def inputs(batch=1, rows=6, keys=9, heads=64, seed=0, kind="attention"):
    generator = torch.Generator().manual_seed(seed)
    depth = 576 if kind == "attention" else 128
    q = torch.randn(batch, rows, heads, depth, generator=generator).bfloat16()
    k = torch.randn(batch, keys, 1, depth, generator=generator).bfloat16()
    if kind == "attention":
        per_head = torch.randn(batch, rows, heads, generator=generator) + 2
    else:
        per_head = torch.randn(batch, rows, heads, generator=generator).bfloat16()
    return q, k, per_head


def run(namespace, kind, tensors, **keywords):
    if kind == "attention":
        return namespace.dense_attn_score_recompute_wrapper(*tensors, 0.04, **keywords)
    return namespace.dense_indexer_score_recompute_wrapper(*tensors, **keywords)


def reference(kind, q, k, per_head):
    """fp64 scores of one batch entry, all cells: (R, H, D), (N, 1, D), (R, H)."""
    if kind == "indexer":
        return exact(q, k[:, 0], per_head)
    dots = torch.einsum("rhd,nd->rhn", q.double(), k[:, 0].double()) * 0.04
    return torch.exp(dots - per_head.double().unsqueeze(2)).sum(1)


def seen_cells(version, rows, keys, offset=0, ratio=1):
    late = RELEASES[version].mask_alignment == "top_left"
    start = offset if late else keys * ratio - rows
    limits = (torch.arange(rows) + start + 1) // ratio
    return torch.arange(keys) < limits.clamp(0, keys).unsqueeze(1)


def assert_visible(kind, result, expected, seen):
    torch.testing.assert_close(
        result["out"][seen].double(), expected[seen], rtol=2e-5, atol=1e-3, check_dtype=False
    )
    if kind == "attention":
        denominators = expected.masked_fill(~seen, 0).sum(-1)
    else:
        denominators = torch.logsumexp(expected.masked_fill(~seen, -INF), -1)
    torch.testing.assert_close(result["denom"].double(), denominators, rtol=2e-5, atol=1e-3)


@every_kind
@every_release
def test_visible_cells_and_denominators(version, arch, kind):
    tensors = inputs(rows=6, keys=9, kind=kind)
    result = run(modelled_namespace(version, arch), kind, tensors)
    assert list(result.keys()) == ["out", "denom"]
    expected = reference(kind, *(tensor[0] for tensor in tensors))
    squeezed = {name: result[name][0] for name in ("out", "denom")}
    assert_visible(kind, squeezed, expected, seen_cells(version, 6, 9))


@pytest.mark.parametrize("ratio", [2, 4])
@every_kind
def test_offsets_and_compressed_keys(kind, ratio):
    q, k, per_head = inputs(batch=2, rows=8, keys=5, kind=kind)
    offsets = [5, -3]
    result = run(
        modelled_namespace(),
        kind,
        (q, k, per_head),
        ratio=ratio,
        q_causal_offsets=int32(*offsets),
    )
    for b, offset in enumerate(offsets):
        expected = reference(kind, q[b], k[b], per_head[b])
        seen = seen_cells("1.32.0", 8, 5, offset, ratio)
        assert_visible(kind, {n: result[n][b] for n in ("out", "denom")}, expected, seen)


def test_heads_without_statistics_add_nothing_but_the_exponent_floor():
    """An lse of +inf marks a padded head; from 1.26 on SM100 gives 2^-126 unless heads are 64."""
    floor = 2.0**-126
    for version, arch, heads, least in (
        ("1.32.0", "sm100", 64, 0.0),
        ("1.32.0", "sm100", 32, 32 * floor),
        ("1.25.0", "sm100", 32, 0.0),
        ("1.32.0", "sm90", 32, 0.0),
    ):
        q, k, lse = inputs(heads=heads)
        result = run(
            modelled_namespace(version, arch), "attention", (q, k, torch.full_like(lse, INF))
        )
        assert float(result["out"][0, 5, 0]) == pytest.approx(least, rel=1e-6, abs=0)


def masked_value(version, arch, row, keys):
    """Table of masked cells: value per column of a row of a call with top-left or full rows."""
    if version >= "1.30.0" or (version >= "1.26.0" and arch == "sm100"):
        return [-INF] * keys
    if version < "1.26.0":
        return [0.0] * keys
    tile = -(-(row + 1) // 64) * 64
    return [0.0 if column < tile else -INF for column in range(keys)]


@every_kind
@every_release
def test_masked_cells(version, arch, kind):
    keys = 200
    tensors = inputs(rows=keys, keys=keys, heads=16, kind=kind)
    tensors = tuple(t[:, :keys] for t in tensors)
    result = run(modelled_namespace(version, arch), kind, tensors)
    for row in (0, 63, 64, 130, 199):
        hidden = result["out"][0, row, row + 1 :].tolist()
        assert hidden == masked_value(version, arch, row, keys)[row + 1 :]


@pytest.mark.parametrize(
    ("version", "arch", "inside", "behind", "unowned"),
    [
        ("1.24.0", "sm90", 0.0, -INF, 7.0),
        ("1.25.0", "sm90", 0.0, -INF, 0.0),
        ("1.24.0", "sm100", 0.0, 0.0, 7.0),
        ("1.26.0", "sm90", 0.0, -INF, -INF),
        ("1.26.0", "sm100", -INF, -INF, -INF),
        ("1.32.0", "sm90", -INF, -INF, -INF),
        ("1.32.0", "sm100", -INF, -INF, -INF),
    ],
)
@every_kind
def test_masked_cells_of_a_given_packed_buffer(version, arch, inside, behind, unowned, kind):
    """One segment of four rows and keys in a buffer of 300 columns, and a row nobody owns."""
    q, k, per_head = (tensor[0] for tensor in inputs(rows=5, keys=4, heads=16, kind=kind))
    out = torch.full((5, 300), 7.0)
    result = run(
        modelled_namespace(version, arch),
        kind,
        (q, k, per_head),
        out=out,
        cu_seqlens_q=prefix([4]),
        cu_seqlens_k=prefix([4]),
        max_seqlen_q=4,
        max_seqlen_k=300,
    )
    assert result["out"] is out
    assert float(out[0, 1]) == inside
    assert float(out[0, 100]) == behind
    assert (out[4] == unowned).all()
    last = 7.0 if (version, arch) == ("1.24.0", "sm100") else behind
    assert float(out[0, 299]) == last, "columns behind the last block of 128 are not written"


@every_kind
@pytest.mark.parametrize("arch", ARCHES)
def test_packed_segments_equal_their_own_calls(arch, kind):
    q, k, per_head = inputs(batch=2, rows=5, keys=5, kind=kind)
    namespace = modelled_namespace(arch=arch)
    whole = run(namespace, kind, (q, k, per_head))
    packed = tuple(torch.cat([t[0, :3], t[1]]) for t in (q, k, per_head))
    cu = prefix([3, 0, 5])
    result = run(namespace, kind, packed, cu_seqlens_q=cu, cu_seqlens_k=cu)
    torch.testing.assert_close(result["out"][3:], whole["out"][1])
    torch.testing.assert_close(result["out"][:3, :3], whole["out"][0, :3, :3])
    torch.testing.assert_close(
        result["denom"], torch.cat([whole["denom"][0, :3], whole["denom"][1]])
    )


@every_kind
def test_rows_without_keys(kind):
    q, k, per_head = inputs(rows=3, keys=3, kind=kind)
    result = run(modelled_namespace(), kind, (q, k, per_head), q_causal_offsets=int32(-2))
    assert result["denom"][0, :2].tolist() == [0.0 if kind == "attention" else -INF] * 2
    assert torch.isfinite(result["denom"][0, 2])


@pytest.mark.parametrize("arch", ARCHES)
def test_a_short_maximum_leaves_later_rows_alone_on_sm100(arch):
    q, k, per_head = (tensor[0] for tensor in inputs(rows=6, keys=6))
    keywords = {
        "cu_seqlens_q": prefix([6]),
        "cu_seqlens_k": prefix([6]),
        "max_seqlen_q": 4,
        "max_seqlen_k": 6,
    }
    denominators = run(
        modelled_namespace("1.32.0", arch), "attention", (q, k, per_head), **keywords
    )
    untouched = bool(is_poison(denominators["denom"][4:]).all())
    assert untouched == (arch == "sm100")
    healthy = run(without("1.32.0", arch, "short_max_q"), "attention", (q, k, per_head), **keywords)
    assert torch.isfinite(healthy["denom"]).all()


@pytest.mark.parametrize("version", ["1.26.0", "1.29.0", "1.30.0"])
@every_kind
def test_a_single_row_on_sm90(version, kind):
    tensors = inputs(rows=1, keys=4, kind=kind)
    if version >= "1.30.0":
        assert torch.isfinite(
            run(modelled_namespace(version, "sm90"), kind, tensors)["denom"]
        ).all()
        return
    with pytest.raises(RuntimeError, match="single query row"):
        run(modelled_namespace(version, "sm90"), kind, tensors)
    healthy = without(version, "sm90", "single_row")
    assert torch.isfinite(run(healthy, kind, tensors)["denom"]).all()


@pytest.mark.parametrize("heads", [16, 32, 48, 64, 96, 128])
@pytest.mark.parametrize("arch", ARCHES)
@every_kind
def test_head_counts(kind, arch, heads):
    tensors = inputs(rows=2, keys=2, heads=heads, kind=kind)
    namespace = modelled_namespace(arch=arch)
    if arch == "sm90":
        refused = AssertionError if heads == 96 else None
    else:
        refused = (
            None if heads not in (48, 96) else {"attention": ValueError}.get(kind, CompileFailure)
        )
    if refused is None:
        assert torch.isfinite(run(namespace, kind, tensors)["denom"]).all()
    else:
        with pytest.raises(refused):
            run(namespace, kind, tensors)


@every_kind
@every_release
def test_refusals(version, arch, kind):
    namespace = modelled_namespace(version, arch)
    q, k, per_head = inputs(kind=kind)
    for tensors, keywords in (
        ((q.float(), k, per_head), {}),
        ((q, k, per_head.half()), {}),
        ((q[0], k, per_head), {}),
        ((q, k[..., :64], per_head), {}),
        ((q, k, per_head[:, :2]), {}),
        ((q, k, per_head), {"ratio": 0}),
        ((q, k, per_head), {"qhead_per_kv_head": 32}),
        ((q, k, per_head), {"cu_seqlens_q": prefix([6])}),
        ((q, k, per_head), {"out": torch.zeros(1, 6, 8)}),
        ((q, k, per_head), {"denom_out": torch.zeros(1, 6).double()}),
    ):
        with pytest.raises(ValueError):
            run(namespace, kind, tensors, **keywords)
    with pytest.raises(NotModelledError):
        run(namespace, kind, (q, k.expand(-1, -1, 2, -1), per_head))


def test_prefix_sums_are_asserted_on_sm100_and_cast_elsewhere():
    q, k, per_head = (tensor[0] for tensor in inputs(rows=4, keys=4))
    cu = prefix([4]).long()
    keywords = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 4, "max_seqlen_k": 4}
    with pytest.raises(AssertionError, match="int32"):
        run(modelled_namespace("1.31.0"), "attention", (q, k, per_head), **keywords)
    for namespace in (modelled_namespace("1.31.0", "sm90"), modelled_namespace("1.32.0")):
        run(namespace, "attention", (q, k, per_head), **keywords)
    short = {
        **keywords,
        "cu_seqlens_k": prefix([9]),
        "cu_seqlens_q": prefix([9]),
        "max_seqlen_q": 9,
    }
    with pytest.raises(AddressFault):
        run(modelled_namespace(), "attention", (q, k, per_head), **short)
    with pytest.raises(NotImplementedError, match="mxfp8"):
        run(modelled_namespace(), "attention", inputs(), precision="mxfp8")


def test_results_are_wrapped_like_q():
    q, k, lse = inputs()
    assert all(t.is_cuda for t in run(modelled_namespace(), "attention", (cuda_like(q), k, lse)))
