"""Sparse indexer backward: gradients, side effects, ids, and what each release refuses."""

import pytest
import torch
from training_inputs import (
    BF16,
    error,
    globalised,
    having,
    indexer_case,
    lacking,
    pairs,
    run_indexer_backward,
    without,
)

from harness.kernels import ARCHES, RELEASES, cuda_like, modelled_namespace

GRADIENTS = ("d_index_q", "d_weights", "d_index_k")
AMONG = ("1.24.0", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.32.0")
PAIRS = pairs(*AMONG)
every_release = pytest.mark.parametrize(("version", "arch"), PAIRS)
CASE = indexer_case()


def late(version):
    return version not in ("1.24.0", "1.25.0")


def no_gradient(result, batch):
    return all(bool((result[name][batch] == 0).all()) for name in GRADIENTS)


@every_release
def test_gradients_equal_autograd_of_the_divergence(version, arch):
    result = run_indexer_backward(modelled_namespace(version, arch), CASE)
    assert list(result.keys()) == list(GRADIENTS)
    assert all(tensor.dtype == torch.bfloat16 for tensor in result)
    for name, expected in zip(GRADIENTS, (CASE.d_q, CASE.d_w, CASE.d_k), strict=True):
        assert error(result[name], expected) < BF16


@pytest.mark.parametrize("heads", [64, 96, 128])
@pytest.mark.parametrize("slots", [128, 384, 768])
def test_gradients_of_other_widths_and_heads(heads, slots):
    case = indexer_case(batch=1, rows=2, heads=heads, slots=slots)
    for arch in ARCHES:
        result = run_indexer_backward(modelled_namespace("1.32.0", arch), case)
        assert error(result["d_index_q"], case.d_q) < BF16
        assert error(result["d_index_k"], case.d_k) < BF16


def test_loss_coefficient_and_outer_gradient_scale_everything():
    namespace = modelled_namespace("1.32.0")
    plain = run_indexer_backward(namespace, CASE)
    scaled = run_indexer_backward(namespace, CASE, grad_loss=4.0, loss_coeff=0.5)
    for name in GRADIENTS:
        torch.testing.assert_close(scaled[name].float(), plain[name].float() * 2)


def test_rows_in_several_chunks(monkeypatch):
    whole = run_indexer_backward(modelled_namespace(), CASE)
    monkeypatch.setattr("harness.kernels.indexer_backward._CHUNK_BYTES", 1 << 19)
    parts = run_indexer_backward(modelled_namespace(), CASE)
    for name in GRADIENTS:
        torch.testing.assert_close(parts[name], whole[name])


@pytest.mark.parametrize("version", ["1.28.0", "1.32.0"])
def test_second_backend_keeps_two_terms_of_the_gradient(version):
    """fp32 buffers show it: two bf16 carry 16 bits, one carries 8."""
    namespace = modelled_namespace(version)
    errors = {}
    for backend in ("default", "sm100_v2"):
        d_k = torch.zeros(CASE.k.shape)
        run_indexer_backward(namespace, CASE, backend=backend, d_index_k=d_k)
        errors[backend] = error(d_k, CASE.d_k)
    assert errors["sm100_v2"] < 2**-14 < 2**-11 < errors["default"] < BF16
    d_w = torch.zeros(CASE.w.shape)
    run_indexer_backward(namespace, CASE, backend="sm100_v2", d_weights=d_w)
    assert error(d_w, CASE.d_w) < 2**-14


# Side effects


@every_release
def test_the_signal_overwrites_the_target_and_on_sm100_the_sum_the_prediction(version, arch):
    namespace = modelled_namespace(version, arch)
    target, predict = CASE.target.clone(), CASE.predict.clone()
    ids = CASE.ids if late(version) else globalised(CASE.ids, CASE.k.shape[1])
    namespace.indexer_backward_wrapper(
        CASE.q, CASE.w, CASE.k, target, predict, ids, grad_loss=torch.ones(())
    )
    scale = 1 / (2 * 3)
    expected = CASE.predict * CASE.target.sum(-1, keepdim=True) - CASE.target
    torch.testing.assert_close(target, expected * scale, rtol=1e-5, atol=1e-8)
    overwritten = arch == "sm100" and version < "1.29.0"
    assert torch.equal(predict, CASE.predict) != overwritten
    if overwritten:
        torch.testing.assert_close(predict, torch.full_like(predict, -scale), rtol=1e-5, atol=0)


def test_the_gate_closes_below_the_clipped_probability():
    """A prediction of 0 leaves no gradient of its own; the least normal number does."""
    target = torch.tensor([[[0.5, 0.5] + [0.0] * 126]])
    signals = []
    for least in (0.0, torch.finfo(torch.float32).tiny):
        predict = torch.tensor([[[1.0, least] + [0.0] * 126]])
        kept = target.clone()
        modelled_namespace().indexer_backward_wrapper(
            CASE.q[:1, :1],
            CASE.w[:1, :1],
            CASE.k[:1],
            kept,
            predict,
            CASE.ids[:1, :1],
            torch.ones(()),
        )
        signals.append(kept[0, 0, :2].tolist())
    assert signals[0] == pytest.approx([0.0, 0.0])
    assert signals[1] == pytest.approx([0.5, -0.5])


@every_release
def test_shapes_that_do_not_fit_destroy_the_scores_in_early_releases(version, arch):
    target = CASE.target.clone()
    ids = CASE.ids[:, :, :128] if late(version) else globalised(CASE.ids, CASE.k.shape[1])
    with pytest.raises(ValueError, match="d_index_k"):
        modelled_namespace(version, arch).indexer_backward_wrapper(
            CASE.q,
            CASE.w,
            CASE.k,
            target,
            CASE.predict.clone(),
            ids,
            grad_loss=torch.ones(()),
            d_index_k=torch.zeros(2, 39, 128),
        )
    assert torch.equal(target, CASE.target) == (version >= "1.28.0")


def test_caller_buffers_keep_their_identity():
    buffers = {
        "d_index_q": torch.zeros_like(CASE.q),
        "d_weights": torch.zeros_like(CASE.w),
        "d_index_k": torch.zeros(CASE.k.shape),
    }
    result = run_indexer_backward(modelled_namespace(), CASE, **buffers)
    assert all(result[name] is buffer for name, buffer in buffers.items())
    assert error(buffers["d_index_k"], CASE.d_k) < BF16


# Ids


@pytest.mark.parametrize("invalid", [-1, -(2**31), 40, 2 * 40])
@every_release
def test_ids_that_are_no_key_contribute_nothing(version, arch, invalid):
    """The last batch's ids from Sk on are outside every release's range."""
    ids = CASE.ids if late(version) else globalised(CASE.ids, 40)
    ids = ids.clone()
    unused = torch.zeros_like(ids, dtype=torch.bool)
    unused[1, :, 20:] = True
    local_as_global = invalid + 40 if not late(version) and invalid > 0 else invalid
    ids[unused] = local_as_global
    case = indexer_case()
    case.target[unused] = 0.3
    case.predict[unused] = 0.1
    namespace = modelled_namespace(version, arch)
    result = run_indexer_backward(namespace, case, ids=ids)
    # Same signal with the slots empty: only the ids differ.
    ids[unused] = -1
    expected = run_indexer_backward(namespace, case, ids=ids)
    assert all(torch.equal(result[name], expected[name]) for name in GRADIENTS)
    assert namespace.findings == []


@every_release
def test_global_ids_are_those_of_several_batches(version, arch):
    namespace = modelled_namespace(version, arch)
    local = run_indexer_backward(namespace, CASE)
    if not late(version):
        return
    ids = globalised(CASE.ids, CASE.k.shape[1])
    wide = run_indexer_backward(namespace, CASE, ids=ids, topk_indices_global=True)
    assert all(torch.equal(wide[name], local[name]) for name in GRADIENTS)


def shifted(batches, by):
    """Ids of batch 0 moved by ``by``; all other batches are empty."""
    case = indexer_case(batch=batches, rows=1)
    ids = torch.full_like(case.ids, -1)
    ids[0, 0, :20] = case.ids[0, 0, :20] + by
    return case, ids


@pytest.mark.parametrize(("version", "arch"), having("d550", AMONG))
def test_a_local_id_of_the_key_count_uses_the_next_batch(version, arch):
    case, ids = shifted(batches=2, by=40)
    namespace = modelled_namespace(version, arch)
    d_k = run_indexer_backward(namespace, case, ids=ids)["d_index_k"]
    assert (d_k[0] == 0).all()
    assert (d_k[1] != 0).any()
    found = namespace.findings
    assert {(f.operand, f.klass) for f in found} == {
        ("index_k", "wrong_row"),
        ("d_index_k", "wrong_row"),
    }
    assert found[0].element_offset == 128 * int(ids[0, 0, 0])


@pytest.mark.parametrize(
    ("version", "arch", "gone"),
    [(v, a, "d550") for v, a in having("d550", AMONG)]
    + [(v, a, "") for v, a in lacking("d550", *ARCHES, among=AMONG) if late(v)],
)
def test_a_local_id_of_the_key_count_is_dropped_without_d550(version, arch, gone):
    case, ids = shifted(batches=2, by=40)
    namespace = without(version, arch, gone)
    result = run_indexer_backward(namespace, case, ids=ids)
    assert no_gradient(result, 0)
    assert no_gradient(result, 1)
    assert namespace.findings == []


def test_the_second_backend_never_had_d550():
    case, ids = shifted(batches=2, by=40)
    namespace = modelled_namespace("1.28.0")
    assert no_gradient(run_indexer_backward(namespace, case, ids=ids, backend="sm100_v2"), 1)


@pytest.mark.parametrize(("version", "arch"), [p for p in PAIRS if p[1] == "sm100"])
def test_a_global_id_of_another_batch_is_used_on_sm100(version, arch):
    case, ids = shifted(batches=2, by=40)
    keywords = {"topk_indices_global": True} if late(version) else {}
    namespace = modelled_namespace(version, arch)
    d_k = run_indexer_backward(namespace, case, ids=ids, **keywords)["d_index_k"]
    assert (d_k[1] != 0).any()
    assert {f.klass for f in namespace.findings} == {"wrong_row"}
    for healthy in (without(version, arch, "foreign_ids"), modelled_namespace(version, "sm90")):
        assert no_gradient(run_indexer_backward(healthy, case, ids=ids, **keywords), 1)
        assert healthy.findings == []


# d_index_k that was not zeroed


@pytest.mark.parametrize(("version", "arch"), having("unzeroed_dk", AMONG))
def test_early_releases_add_to_an_fp32_gradient(version, arch):
    old = torch.full(CASE.k.shape, 3.0)
    for namespace, kept in (
        (modelled_namespace(version, arch), 3.0),
        (without(version, arch, "unzeroed_dk"), 0.0),
    ):
        d_k = old.clone()
        run_indexer_backward(namespace, CASE, d_index_k=d_k)
        assert error(d_k - kept, CASE.d_k) < BF16


@pytest.mark.parametrize(("version", "arch"), lacking("unzeroed_dk", *ARCHES, among=AMONG))
def test_later_releases_zero_an_fp32_gradient_first(version, arch):
    d_k = torch.full(CASE.k.shape, float("nan"))
    run_indexer_backward(modelled_namespace(version, arch), CASE, d_index_k=d_k)
    assert error(d_k, CASE.d_k) < BF16


# Refusals


@pytest.mark.parametrize("slots", [100, 64, 192])
@every_release
def test_widths_off_the_block_fail_at_compile_with_the_scores_intact(version, arch, slots):
    case = indexer_case(batch=1, rows=1, slots=slots)
    target = case.target.clone()
    with pytest.raises(AssertionError, match="block_I"):
        modelled_namespace(version, arch).indexer_backward_wrapper(
            case.q, case.w, case.k, target, case.predict, case.ids, grad_loss=torch.ones(())
        )
    assert torch.equal(target, case.target)


@pytest.mark.parametrize("heads", [16, 32, 48])
@every_release
def test_few_heads(version, arch, heads):
    case = indexer_case(batch=1, rows=1, heads=heads)
    namespace = modelled_namespace(version, arch)
    newest = (version, arch) == ("1.32.0", "sm100")
    if newest and heads == 32:
        assert error(run_indexer_backward(namespace, case)["d_index_q"], case.d_q) < BF16
    else:
        with pytest.raises(ValueError if newest else AssertionError, match="heads"):
            run_indexer_backward(namespace, case)


@every_release
def test_the_outer_gradient_became_a_tensor(version, arch):
    namespace = modelled_namespace(version, arch)
    ids = CASE.ids if late(version) else globalised(CASE.ids, 40)

    def call(grad_loss):
        return namespace.indexer_backward_wrapper(
            CASE.q, CASE.w, CASE.k, CASE.target.clone(), CASE.predict.clone(), ids,
            grad_loss=grad_loss, sm_scale=CASE.sm_scale,
        )  # fmt: skip

    if version >= "1.27.0":
        with pytest.raises(TypeError, match="grad_loss"):
            call(1.0)
        with pytest.raises(ValueError, match="grad_loss"):
            call(torch.ones((), dtype=torch.float64))
        with pytest.raises(ValueError, match="grad_loss"):
            call(torch.ones(2))
    else:
        assert error(call(1.0)["d_index_q"], CASE.d_q) < BF16
        assert error(call(torch.ones(1, dtype=torch.float64))["d_index_q"], CASE.d_q) < BF16
        with pytest.raises(RuntimeError, match="one element"):
            call(torch.ones(2))


def test_position_of_the_outer_gradient():
    for version, position in (("1.26.0", 8), ("1.27.0", 6)):
        signature = RELEASES[version].signatures["indexer_backward_wrapper"]
        assert list(signature.parameters)[position] == "grad_loss"


@pytest.mark.parametrize(("version", "batch", "rows"), [("1.25.0", 1, 65536), ("1.26.0", 65536, 1)])
def test_grid_limits(version, batch, rows):
    one = torch.zeros(1, dtype=torch.bfloat16)
    scores = torch.zeros(1).expand(batch, rows, 128).clone()
    with pytest.raises(RuntimeError, match="65535"):
        modelled_namespace(version).indexer_backward_wrapper(
            one.expand(batch, rows, 64, 128),
            one.expand(batch, rows, 64),
            one.expand(batch, 1, 128),
            scores,
            scores.clone(),
            torch.zeros(batch, rows, 128, dtype=torch.int32),
            grad_loss=torch.ones(()),
        )


def test_options_of_the_newest_release():
    namespace = modelled_namespace()
    for keywords, kind in (
        ({"backend": "v3"}, ValueError),
        ({"deterministic_dk_planes": 128}, ValueError),
        ({"deterministic_dk_planes": 100, "deterministic": True}, ValueError),
        ({"workspace": torch.zeros(10, dtype=torch.uint8)}, ValueError),
        ({"workspace": 3}, TypeError),
    ):
        with pytest.raises(kind):
            run_indexer_backward(namespace, CASE, **keywords)
    with pytest.raises(RuntimeError, match="sm100_v2"):
        run_indexer_backward(modelled_namespace(arch="sm90"), CASE, backend="sm100_v2")
    with pytest.raises(ValueError, match="deterministic"):
        run_indexer_backward(modelled_namespace(arch="sm90"), CASE, deterministic=True)
    workspace = torch.zeros(2 * 40 * 128 * 4, dtype=torch.uint8)
    result = run_indexer_backward(namespace, CASE, workspace=workspace)
    assert error(result["d_index_k"], CASE.d_k) < BF16
    with pytest.raises(ValueError, match="workspace"):
        run_indexer_backward(namespace, CASE, workspace=workspace, deterministic=True)


def test_scores_of_early_releases_must_be_dense():
    with pytest.raises(NotImplementedError, match="contiguous"):
        modelled_namespace("1.26.0").indexer_backward_wrapper(
            CASE.q, CASE.w, CASE.k, CASE.target.transpose(1, 2).contiguous().transpose(1, 2),
            CASE.predict, CASE.ids,
        )  # fmt: skip


def test_results_are_wrapped_and_buffers_written_through_the_wrapper():
    target = cuda_like(CASE.target.clone())
    result = modelled_namespace().indexer_backward_wrapper(
        cuda_like(CASE.q), CASE.w, CASE.k, target, CASE.predict.clone(), CASE.ids, torch.ones(1)
    )
    assert all(tensor.is_cuda for tensor in result)
    assert not torch.equal(torch.Tensor(target), CASE.target)
