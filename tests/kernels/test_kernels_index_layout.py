import pytest
import torch
from kernel_inputs import int32, prefix

from harness.kernels import ARCHES, RELEASES, cuda_like, modelled_namespace

LEAST = -(2**31)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("version", RELEASES)
def test_local_ids_become_global(version, arch):
    namespace = modelled_namespace(version, arch)
    ids = torch.tensor([[[0, 7, -1]], [[0, 8, LEAST]]], dtype=torch.int32)
    result = namespace.local_to_global_wrapper(ids, 8)
    assert result["indices"].tolist() == [[[0, 7, -1]], [[8, 16, -1]]]
    assert result["indices"].dtype == torch.int32
    wide = namespace.local_to_global_wrapper(ids.long(), 8)["indices"]
    assert torch.equal(wide, result["indices"])


def test_packed_rows_take_their_segments_first_key():
    ids = torch.arange(7, dtype=torch.int32).view(7, 1)
    indices = modelled_namespace().local_to_global_wrapper(
        ids, 0, prefix([2, 0, 3]), prefix([10, 20, 30])
    )["indices"]
    assert indices.flatten().tolist() == [0, 1, 32, 33, 34, 35, 36]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("version", RELEASES)
def test_compactify_packs_to_the_left_in_order(version, arch):
    ids = torch.tensor([[5, -1, 3, -7], [-1, -1, -1, -1], [1, 2, 3, 4]], dtype=torch.int32)
    result = modelled_namespace(version, arch).compactify_wrapper(ids)
    assert result["indices"].tolist() == [[5, 3, -1, -1], [-1] * 4, [1, 2, 3, 4]]
    assert result["topk_length"].tolist() == [2, 0, 4]
    cube = modelled_namespace(version, arch).compactify_wrapper(ids.view(3, 1, 4))
    assert cube["indices"].shape == (3, 4)


def test_refusals():
    namespace = modelled_namespace()
    ids = torch.zeros(1, 2, 3, dtype=torch.int32)
    with pytest.raises(TypeError, match="int64"):
        namespace.compactify_wrapper(ids.long())
    with pytest.raises(ValueError, match="axes"):
        namespace.compactify_wrapper(ids[0, 0])
    with pytest.raises(TypeError, match="int16"):
        namespace.local_to_global_wrapper(ids.short(), 3)
    with pytest.raises(ValueError, match="axes"):
        namespace.local_to_global_wrapper(ids[0], 3)
    with pytest.raises(ValueError, match="contiguous"):
        namespace.local_to_global_wrapper(ids[..., ::2], 3)
    cu = prefix([2])
    for pair in ((cu, None), (cu, prefix([1, 1])), (cu.long(), cu)):
        with pytest.raises(ValueError, match=r"cu_seqlens|prefix"):
            namespace.local_to_global_wrapper(ids[0], 3, *pair)
    with pytest.raises(ValueError, match="axes"):
        namespace.local_to_global_wrapper(ids, 3, cu, cu)


def test_results_are_wrapped():
    namespace = modelled_namespace()
    ids = cuda_like(int32(1, -1).view(1, 1, 2))
    assert namespace.local_to_global_wrapper(ids, 2)["indices"].is_cuda
    assert all(tensor.is_cuda for tensor in namespace.compactify_wrapper(ids))
