"""The exact scorer against plain Python, and what must not change with block sizes or settings."""

from __future__ import annotations

import pytest
import torch
from reference_brute import brute_score

from harness.reference.precision import full_precision
from harness.reference.scores import ScoreBlocks, exact_scores, key_norms, row_weights


def operands(rows=7, keys=11, heads=3, dim=5, seed=0, integers=False):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, heads, dim), (keys, dim), (rows, heads))
    if integers:
        return [torch.randint(-3, 4, s, generator=generator).bfloat16() for s in shapes]
    return [torch.randn(s, generator=generator).bfloat16() for s in shapes]


def brute(q, k, w):
    q, k, w = (t.double().tolist() for t in (q, k, w))
    rows = [
        [brute_score(q_row, key, w_row) for key in k] for q_row, w_row in zip(q, w, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_scores_equal_plain_python(dtype, tolerance):
    q, k, w = operands()
    scores = exact_scores(q, k, w, dtype=dtype)
    assert scores.dtype == dtype
    torch.testing.assert_close(scores.double(), brute(q, k, w), atol=tolerance, rtol=0)


def test_relu_comes_before_the_weight():
    q, k = torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[2.0], [-2.0]])
    scores = exact_scores(q, k, torch.tensor([[-3.0, 5.0]]))
    assert scores.tolist() == [[-6.0, 10.0]]


@pytest.mark.parametrize("rows", [1, 2, 300])
@pytest.mark.parametrize("keys", [1, 4, 11])
def test_block_sizes_change_nothing(rows, keys):
    q, k, w = operands(rows=300, integers=True)
    whole = exact_scores(q, k, w)
    assert torch.equal(exact_scores(q, k, w, blocks=ScoreBlocks(rows=rows, keys=keys)), whole)
    q, k, w = operands(rows=300)
    blocks = ScoreBlocks(rows=rows, keys=keys)
    torch.testing.assert_close(
        exact_scores(q, k, w, blocks=blocks), exact_scores(q, k, w), atol=3e-6, rtol=0
    )


def test_writes_into_a_strided_result():
    q, k, w = operands(integers=True)
    wide = torch.full((7, 2 * 11), torch.nan)
    exact_scores(q, k, w, out=wide[:, ::2])
    assert torch.equal(wide[:, ::2], exact_scores(q, k, w))
    assert wide[:, 1::2].isnan().all()


def test_inputs_may_require_gradients():
    q, k, w = (t.float().requires_grad_() for t in operands())
    assert not exact_scores(q, k, w).requires_grad


@pytest.mark.parametrize("shape", ["no_rows", "no_keys"])
def test_empty_operands_give_empty_scores(shape):
    q, k, w = operands(rows=0 if shape == "no_rows" else 2, keys=0 if shape == "no_keys" else 3)
    assert exact_scores(q, k, w).shape == (q.shape[0], k.shape[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda q, k, w: (q[0], k, w),
            r"q must be \(rows, heads, head_dim\), found shape \(3, 5\)",
        ),
        (lambda q, k, w: (q, k[:, None], w), r"single key head squeezed out"),
        (
            lambda q, k, w: (q, k[:, :4], w),
            r"k must be \(keys, head_dim=5\), found shape \(11, 4\)",
        ),
        (lambda q, k, w: (q, k, w[:, :2]), r"w must be \(7, 3\) like q, found shape \(7, 2\)"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        exact_scores(*change(*operands()))


def test_other_dtypes_and_results_are_refused():
    q, k, w = operands()
    with pytest.raises(ValueError, match=r"float32 or torch\.float64, not torch\.bfloat16"):
        exact_scores(q, k, w, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"out must be \(7, 11\) of torch\.float32"):
        exact_scores(q, k, w, out=torch.empty(7, 12))
    with pytest.raises(ValueError, match="at least one row and one key"):
        ScoreBlocks(rows=0, keys=1)


def test_margin_factors():
    q, k, w = operands()
    weights = [
        sum(abs(b) * torch.tensor(a).norm().item() for a, b in zip(q_row, w_row, strict=True))
        for q_row, w_row in zip(q.double().tolist(), w.double().tolist(), strict=True)
    ]
    found = row_weights(q, w, dtype=torch.float64)
    torch.testing.assert_close(found, torch.tensor(weights).double(), atol=1e-5, rtol=1e-5)
    norms = key_norms(k, dtype=torch.float64, step=4)
    torch.testing.assert_close(norms, k.double().pow(2).sum(1).sqrt())


def precision_state():
    matmul = torch.backends.cuda.matmul
    return (
        torch.get_float32_matmul_precision(),
        matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )


@pytest.fixture
def restored_precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.usefixtures("restored_precision")
def test_full_precision_is_switched_on_and_restored(precision):
    torch.set_float32_matmul_precision(precision)
    before = precision_state()
    with full_precision():
        assert precision_state() == ("highest", "ieee", "ieee", False, False)
    assert precision_state() == before
    with pytest.raises(ValueError, match="q must be"), full_precision():
        exact_scores(*[torch.zeros(1)] * 3)
    assert precision_state() == before


@pytest.mark.usefixtures("restored_precision")
def test_backend_settings_that_contradict_the_process_are_restored():
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    with full_precision():
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    torch.backends.cuda.matmul.fp32_precision = "ieee"
