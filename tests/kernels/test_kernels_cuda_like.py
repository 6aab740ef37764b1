import pytest
import torch
from kernel_inputs import bshd, int32

from harness.kernels import CudaLike, TensorHook, cuda_like, modelled_namespace
from harness.kernels.tuple_dict import TupleDict
from harness.kernels.wrapping import unwrap, wrap_like


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        Square.saved = x
        return 2 * x * grad


def test_operators_keep_the_claim_and_factories_lose_it():
    x = cuda_like(torch.arange(6.0).view(2, 3))
    assert x.is_cuda
    assert (x + 1).is_cuda
    assert x.view(3, 2).is_cuda
    assert x.new_zeros(3).is_cuda
    assert not torch.zeros(3, device=x.device).is_cuda
    assert x.device.type == "cpu"


def test_storage_is_shared():
    plain = torch.zeros(3)
    cuda_like(plain)[1] = 5
    assert plain.tolist() == [0, 5, 0]


def test_autograd_and_saved_tensors():
    leaf = torch.tensor([1.0, -3.0], requires_grad=True)
    Square.apply(cuda_like(leaf)).sum().backward()
    assert leaf.grad.tolist() == [2.0, -6.0]
    assert Square.saved.is_cuda


def test_unwrap_drops_type_and_graph():
    x = cuda_like(torch.ones(2, requires_grad=True)) * 2
    plain = unwrap(x)
    assert type(plain) is torch.Tensor
    assert not plain.requires_grad
    assert plain.data_ptr() == x.data_ptr()


def test_wrap_like_leaves_plain_tensors_and_parameters_plain():
    result = torch.zeros(2)
    assert wrap_like(result, torch.ones(1)) is result
    assert wrap_like(result, torch.nn.Parameter(torch.ones(1))) is result
    assert type(wrap_like(result, cuda_like(torch.ones(1)))) is CudaLike


def test_a_run_may_replace_the_hook():
    log = []

    def marked(result, like):
        log.append(tuple(result.shape))
        return wrap_like(result, like)

    namespace = modelled_namespace(hook=TensorHook(wrap_like=marked))
    namespace.indexer_top_k_wrapper(torch.randn(2, 8), int32(8, 8), 4)
    assert log == [(2, 4), (2, 4)]


def test_calls_are_reported_whether_they_return_or_raise():
    records = []
    namespace = modelled_namespace("1.26.0", on_call=records.append)
    q, k, w = bshd(1, 4, 4)
    result = namespace.indexer_forward_wrapper(q, k, w, ratio=1)
    with pytest.raises(ValueError, match="top_k"):
        namespace.indexer_top_k_wrapper(result["scores"][0], int32(1, 2, 3, 4), 0)
    with pytest.raises(TypeError):
        namespace.indexer_top_k_wrapper()
    assert [record.name for record in records] == [
        "indexer_forward_wrapper",
        "indexer_top_k_wrapper",
    ]
    assert records[0].arguments["q"] is q
    assert records[0].arguments["kv_stage"] == 4
    assert records[0].result is result
    assert records[0].error is None
    assert records[0].seconds > 0
    assert isinstance(records[1].error, ValueError)


def test_tuple_dict_unpacks_values_and_takes_integers():
    result = TupleDict(indices="i", values=None)
    first, second = result
    assert (first, second) == ("i", None)
    assert result[0] == result["indices"] == "i"
    assert list(result.keys()) == ["indices", "values"]
    assert "values" in result
    assert len(result) == 2
    assert result == {"indices": "i", "values": None}
    for bad in (2, -1):
        with pytest.raises(IndexError):
            _ = result[bad]
    with pytest.raises(KeyError):
        _ = result["scores"]


def test_tuple_dict_behaves_as_the_installed_one():
    real = pytest.importorskip("cudnn._tupledict", reason="needs nvidia-cudnn-frontend 1.32")
    ours, theirs = TupleDict(a=1, b=2), real.TupleDict(a=1, b=2)
    assert list(ours) == list(theirs)
    assert (ours[1], ours["a"]) == (theirs[1], theirs["a"])
    assert dict(ours.items()) == dict(theirs.items())
