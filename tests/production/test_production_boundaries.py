"""Every way to hand over boundaries has the right values, and the aliases, views, types named."""

from __future__ import annotations

import contextvars

import pytest
import torch

from harness.layout import pack_sequences
from harness.production.boundaries import boundary_lists, hand_over
from harness.production.inputs import as_given
from harness.scenario.names import BOUNDARIES
from harness.scenario.spec import ValuesSpec

UNEVEN = pack_sequences([5, 0, 3], cp_size=2)
EVEN = pack_sequences([8, 0, 4], cp_size=2)
NAMES = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def lists(way, pack=UNEVEN):
    def handed():
        hand_over(way)
        return boundary_lists(pack)

    # In a context of its own: the way stays as it is told.
    return contextvars.copy_context().run(handed)


@pytest.mark.parametrize("way", BOUNDARIES)
def test_what_is_handed_over_has_the_values_of_the_pack(way):
    pack = EVEN if way == "one" else UNEVEN
    due = (
        pack.cu_seqlens_q,
        pack.cu_seqlens_k,
        pack.cu_seqlens_q_padded,
        pack.cu_seqlens_k_padded,
    )
    found = lists(way, pack)
    assert tuple(found) == NAMES
    for name, values in zip(NAMES, due, strict=True):
        tensor = found[name]
        assert tensor is None or tuple(tensor.tolist()) == values


@pytest.mark.parametrize(
    ("way", "absent", "objects"),
    [
        ("own", (), 4),
        ("shared", (), 2),
        ("one", (), 1),
        ("real_only", ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), 2),
        ("query_only", ("cu_seqlens_kv", "cu_seqlens_kv_padded"), 2),
        ("strided", (), 4),
        ("int64", (), 4),
    ],
)
def test_aliases_are_the_ones_named(way, absent, objects):
    found = lists(way, EVEN)
    assert tuple(name for name in NAMES if found[name] is None) == absent
    assert len({id(tensor) for tensor in found.values() if tensor is not None}) == objects


def test_types_and_strides_are_the_ones_named():
    assert {t.dtype for t in lists("own").values()} == {torch.int32}
    assert {t.dtype for t in lists("int64").values()} == {torch.int64}
    for tensor in lists("strided").values():
        assert tensor.dtype == torch.int32
        assert not tensor.is_contiguous()
        assert tensor.storage_offset() > 0
        wide = torch.as_strided(tensor, (2 * len(tensor),), (1,), tensor.storage_offset())
        # What lies in between is no boundary, so that a reader that goes by shape alone is wrong.
        assert set(wide[1::2].tolist()).isdisjoint(UNEVEN.cu_seqlens_q)


def test_generated_tensors_are_dense_or_views_by_the_scenario():
    tensor = torch.arange(12.0).view(3, 4)
    assert as_given(tensor, ValuesSpec()) is tensor
    view = as_given(tensor, ValuesSpec(strided=True))
    assert torch.equal(view, tensor)
    assert view.stride() == (8, 2)
    beside = torch.as_strided(view, (3, 4), (8, 2), view.storage_offset() + 1)
    assert bool(beside.isnan().all())
    assert view.requires_grad_(True).is_leaf
