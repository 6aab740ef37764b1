"""Dense indexer backward: gradients, where the signal goes, and the two clipping rules."""

from types import SimpleNamespace

import pytest
import torch
from kernel_inputs import int32, prefix
from training_inputs import BF16, error, having, lacking, pairs, without

from harness.kernels import ARCHES, RELEASES, AddressFault, modelled_namespace
from harness.kernels.poison import is_poison

INF = float("inf")
GRADIENTS = ("d_index_q", "d_weights", "d_index_k")
AMONG = ("1.25.0", "1.26.0", "1.27.0", "1.32.0")
PAIRS = pairs(*AMONG)
every_release = pytest.mark.parametrize(("version", "arch"), PAIRS)


def bottom_right(version):
    return RELEASES[version].mask_alignment == "bottom_right"


def limits_of(version, rows, keys, offset=0, ratio=1):
    start = keys * ratio - rows if bottom_right(version) else offset
    return [min(max((start + row + 1) // ratio, 0), keys) for row in range(rows)]


def dense_case(version, batch=2, rows=5, keys=8, heads=64, offsets=None, ratio=1, seed=0):
    """Raw scores, their denominators, and the gradients of the clipped-free divergence (fp64)."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, rows, heads, 128, generator=generator).bfloat16()
    k = torch.randn(batch, keys, 128, generator=generator).bfloat16()
    w = torch.randn(batch, rows, heads, generator=generator).bfloat16()
    attention = torch.rand(batch, rows, keys, generator=generator) + 0.1
    seen = torch.stack(
        [
            torch.arange(keys)
            < torch.tensor(limits_of(version, rows, keys, offset, ratio)).unsqueeze(1)
            for offset in (offsets or [0] * batch)
        ]
    )
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, w)]
    dots = torch.einsum("bqhd,bnd->bqhn", leaves[0], leaves[1]) * 0.09
    scores = (dots.relu() * leaves[2].unsqueeze(-1)).sum(2).masked_fill(~seen, -INF)
    lse = torch.logsumexp(scores, -1)
    shown = attention.double().masked_fill(~seen, 0)
    norm = shown.sum(-1)
    target = shown / norm.unsqueeze(-1).clamp(min=1e-30)
    log_predict = (scores - lse.unsqueeze(-1)).masked_fill(~seen, 0)
    loss = (target * (target.clamp(min=1e-30).log() - log_predict)).sum() / (batch * rows)
    loss.backward()
    return SimpleNamespace(
        q=q,
        k=k,
        w=w,
        attention=attention,
        norm=norm.float(),
        scores=scores.detach().float(),
        lse=lse.detach().float(),
        seen=seen,
        target=target,
        predict=log_predict.detach().exp(),
        expected=dict(
            zip(GRADIENTS, (leaves[0].grad, leaves[2].grad, leaves[1].grad), strict=True)
        ),
        offsets=offsets,
    )


def run(namespace, case, attention=None, scores=None, **keywords):
    if case.offsets is not None:
        keywords["q_causal_offsets"] = int32(*case.offsets)
    return namespace.dense_indexer_backward_wrapper(
        case.q,
        case.w,
        case.k,
        case.attention.clone() if attention is None else attention,
        case.norm,
        case.scores.clone() if scores is None else scores,
        case.lse,
        sm_scale=0.09,
        grad_loss=torch.ones(()),
        **keywords,
    )


def assert_gradients(result, case):
    for name in GRADIENTS:
        assert error(result[name], case.expected[name]) < BF16


@pytest.mark.parametrize(("rows", "keys"), [(8, 8), (5, 8)])
@every_release
def test_gradients_equal_autograd_of_the_divergence(version, arch, rows, keys):
    case = dense_case(version, rows=rows, keys=keys)
    result = run(modelled_namespace(version, arch), case)
    assert list(result.keys()) == list(GRADIENTS)
    assert_gradients(result, case)


@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize(("version", "arch"), [("1.25.0", "sm100"), ("1.32.0", "sm90")])
def test_gradients_with_compressed_keys(version, arch, ratio):
    case = dense_case(version, rows=5 * ratio, keys=5, ratio=ratio)
    assert_gradients(run(modelled_namespace(version, arch), case, ratio=ratio), case)


@pytest.mark.parametrize("arch", ARCHES)
def test_gradients_with_offsets(arch):
    case = dense_case("1.32.0", offsets=[3, -2])
    assert_gradients(run(modelled_namespace(arch=arch), case), case)


def test_rows_in_several_chunks(monkeypatch):
    monkeypatch.setattr("harness.kernels.dense_indexer_backward._CHUNK_ELEMENTS", 1000)
    case = dense_case("1.32.0")
    assert_gradients(run(modelled_namespace(), case), case)


@every_release
def test_the_signal_is_left_in_one_of_the_scores(version, arch):
    case = dense_case(version, rows=6, keys=8)
    attention, scores = case.attention.clone(), case.scores.clone()
    run(modelled_namespace(version, arch), case, attention, scores)
    first_torch = arch == "sm90" and bottom_right(version)
    written, kept = (attention, scores) if first_torch else (scores, attention)
    assert torch.equal(kept, case.scores if first_torch else case.attention)
    signal = (case.predict * case.target.sum(-1, keepdim=True) - case.target) / (2 * 6)
    torch.testing.assert_close(written[case.seen].double(), signal[case.seen], rtol=1e-4, atol=1e-8)
    assert (written[~case.seen] == 0).all()


@pytest.mark.parametrize("arch", ARCHES)
def test_columns_behind_the_last_block_keep_their_scores(arch):
    """SM100 reads rows in pairs counted from the last one; the pair's longer row decides."""
    case = dense_case("1.32.0", batch=1, rows=300, keys=300)
    scores = case.scores.masked_fill(~case.seen, 7.0)
    run(modelled_namespace(arch=arch), case, scores=scores)
    for row in (0, 1, 126, 127, 128, 255, 256, 299):
        last = row + 1 if (299 - row) % 2 and arch == "sm100" else row
        end = min(-(-(last + 1) // 128) * 128, 300)
        assert (scores[0, row, row + 1 : end] == 0).all()
        assert (scores[0, row, end:] == 7.0).all()


def test_early_releases_zero_the_whole_row():
    case = dense_case("1.25.0", batch=1, rows=200, keys=200)
    scores = case.scores.masked_fill(~case.seen, 7.0)
    run(modelled_namespace("1.25.0"), case, scores=scores)
    assert (scores[0][~case.seen[0]] == 0).all()


@pytest.mark.parametrize(("version", "arch"), [("1.25.0", "sm90"), ("1.25.0", "sm100")])
def test_the_first_sm90_stage_ignores_the_given_denominators(version, arch):
    case = dense_case(version)
    right = case.norm, case.lse
    case.norm, case.lse = case.norm * 100, case.lse + 5
    result = run(modelled_namespace(version, arch), case)
    if arch == "sm90":
        assert_gradients(result, case)
    else:
        assert error(result["d_index_q"], case.expected["d_index_q"]) > 0.5
    case.norm, case.lse = right


# d297: the clipping rule


def clipped_case(version, log_probability):
    """One row of two keys; the second one's log-probability is given, its target is 0.5."""
    case = dense_case(version, batch=1, rows=2, keys=2)
    case.scores[0, 1] = torch.tensor([0.0, log_probability])
    case.lse[0, 1] = 0.0
    case.attention[0, 1] = 0.5
    case.norm[0, 1] = 1.0
    return case


def second_signal(namespace, case):
    scores = case.scores.clone()
    run(namespace, case, scores=scores)
    return float(scores[0, 1, 1])


@pytest.mark.parametrize(("version", "arch"), having("d297", AMONG))
def test_a_flushed_probability_loses_its_gradient(version, arch):
    tiny = clipped_case(version, -95.0)
    assert second_signal(modelled_namespace(version, arch), tiny) == 0.0
    assert second_signal(without(version, arch, "d297"), tiny) == pytest.approx(-0.25)
    plain = clipped_case(version, -80.0)
    assert second_signal(modelled_namespace(version, arch), plain) == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("version", "arch"),
    [p for p in lacking("d297", *ARCHES, among=AMONG) if not bottom_right(p[0])],
)
def test_logarithms_are_clipped_at_minus_100(version, arch):
    namespace = modelled_namespace(version, arch)
    assert second_signal(namespace, clipped_case(version, -99.9)) == pytest.approx(-0.25)
    assert second_signal(namespace, clipped_case(version, -100.1)) == 0.0


# THD


def packed(case, lengths_q, lengths_k):
    """Cut segments of the batches of ``case`` and pack them; scores stay segment-local."""
    width = max(lengths_k)
    cut = SimpleNamespace(offsets=None)
    for name in ("q", "w", "norm", "lse"):
        parts = [getattr(case, name)[b, :n] for b, n in enumerate(lengths_q)]
        setattr(cut, name, torch.cat(parts))
    for name in ("attention", "scores"):
        parts = [getattr(case, name)[b, :n, :width] for b, n in enumerate(lengths_q)]
        setattr(cut, name, torch.cat(parts).contiguous())
    cut.k = torch.cat([case.k[b, :n] for b, n in enumerate(lengths_k)])
    keywords = {
        "cu_seqlens_q": prefix(lengths_q),
        "cu_seqlens_k": prefix(lengths_k),
        "max_seqlen_q": max(lengths_q),
        "max_seqlen_k": width,
    }
    return cut, keywords


@every_release
def test_packed_segments_equal_their_own_calls(version, arch):
    namespace = modelled_namespace(version, arch)
    case = dense_case(version, batch=2, rows=6, keys=6)
    cut, keywords = packed(case, [6, 6], [6, 6])
    whole = run(namespace, case)
    result = run(namespace, cut, **keywords)
    for name in GRADIENTS:
        torch.testing.assert_close(
            result[name].float(), whole[name].flatten(0, 1).float(), rtol=2**-7, atol=1e-6
        )


@pytest.mark.parametrize("arch", ARCHES)
def test_maxima_may_be_left_out_and_an_empty_segment_is_nothing(arch):
    case = dense_case("1.32.0", batch=3, rows=6, keys=6)
    cut, keywords = packed(case, [6, 0, 4], [6, 0, 4])
    del keywords["max_seqlen_q"], keywords["max_seqlen_k"]
    result = run(modelled_namespace(arch=arch), cut, **keywords)
    assert all(torch.isfinite(tensor).all() for tensor in result)
    assert all((tensor != 0).any() for tensor in result)


@pytest.mark.parametrize("arch", ARCHES)
def test_rows_past_a_short_maximum_are_never_written(arch):
    case = dense_case("1.32.0", batch=1, rows=6, keys=6)
    cut, keywords = packed(case, [6], [6])
    keywords["max_seqlen_q"] = 4
    result = run(modelled_namespace("1.32.0", arch), cut, **keywords)
    assert is_poison(result["d_index_q"][4:]).all()
    assert torch.isfinite(result["d_index_q"][:4]).all()
    healthy = run(without("1.32.0", arch, "short_max_q"), cut, **keywords)
    assert torch.isfinite(healthy["d_index_q"]).all()


def test_prefix_sums_past_the_keys_fault():
    case = dense_case("1.32.0", batch=1, rows=6, keys=6)
    cut, keywords = packed(case, [6], [6])
    cut.k = cut.k[:4].clone()
    with pytest.raises(AddressFault) as caught:
        run(modelled_namespace(), cut, **keywords)
    assert caught.value.evidence.operand == "index_k"


# Refusals


@every_release
def test_refusals(version, arch):
    namespace = modelled_namespace(version, arch)
    case = dense_case(version, rows=8, keys=8)
    with pytest.raises(ValueError, match="block_I"):
        run(namespace, case, block_I=0)
    with pytest.raises(ValueError, match="ratio"):
        run(namespace, case, ratio=0)
    with pytest.raises(ValueError, match="both"):
        run(namespace, case, cu_seqlens_q=prefix([8]))
    with pytest.raises(ValueError, match="d_weights"):
        run(namespace, case, d_weights=torch.zeros(case.w.shape))
    with pytest.raises(ValueError, match="d_index_q"):
        run(namespace, case, d_index_q=torch.zeros_like(case.q[:, :4]))
    with pytest.raises(ValueError, match="index_score"):
        run(namespace, case, scores=case.scores[:, :, :4].clone())
    with pytest.raises(ValueError, match="heads"):
        run(namespace, dense_case(version, rows=8, keys=8, heads=32))
    tall = dense_case(version, rows=9, keys=8)
    if bottom_right(version):
        with pytest.raises(ValueError, match="9 query rows"):
            run(namespace, tall)
    else:
        assert_gradients(run(namespace, tall), tall)


def test_strided_scores_are_copied_back():
    case = dense_case("1.32.0")
    wide = torch.zeros(*case.scores.shape, 2)
    wide[..., 0] = case.scores
    result = run(modelled_namespace(), case, scores=wide[..., 0])
    assert_gradients(result, case)
    assert not torch.equal(wide[..., 0], case.scores)


def test_caller_buffers_keep_their_identity():
    case = dense_case("1.32.0")
    d_k = torch.full(case.k.shape, 9.0)
    result = run(modelled_namespace(), case, d_index_k=d_k)
    assert result["d_index_k"] is d_k
    assert error(d_k, case.expected["d_index_k"]) < BF16


@pytest.mark.parametrize(("version", "batch", "rows"), [("1.25.0", 1, 65536), ("1.26.0", 65536, 1)])
def test_grid_limits(version, batch, rows):
    half = torch.zeros(1, dtype=torch.bfloat16)
    scores = torch.zeros(1).expand(batch, rows, rows if batch == 1 else 1)
    with pytest.raises(RuntimeError, match="65535"):
        modelled_namespace(version).dense_indexer_backward_wrapper(
            half.expand(batch, rows, 64, 128),
            half.expand(batch, rows, 64),
            half.expand(batch, scores.shape[2], 128),
            scores,
            scores[..., 0],
            scores,
            scores[..., 0],
            grad_loss=torch.ones(()),
        )
