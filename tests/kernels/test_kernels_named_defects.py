"""The defects of the training wrappers that have a public report or a number, by their switch.

Each line of the table is one call that shows the defect. It must show on a clean release with that
one switch on, on every release that shipped the defect, and on no release without it, nor on one
whose defects are all off. So a switch that does nothing, or one that another defect stands in for,
turns a test red.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from kernel_inputs import int32
from recompute_inputs import full_lengths, inputs, reference, run
from training_inputs import (
    BF16,
    attention_case,
    attention_reference,
    error,
    having,
    indexer_case,
    lacking,
    run_attention_backward,
    run_indexer_backward,
)

from harness.kernels import (
    AddressFault,
    CompileFailure,
    KernelHang,
    ModelledNamespace,
    modelled_namespace,
)
from harness.kernels.defects import DEFECTS

Shows = Callable[[ModelledNamespace], bool]


def foreign_key(namespace: ModelledNamespace) -> bool:
    """Batch 0 of 2, a local id equal to the key count: is it treated otherwise than -1?"""
    case = indexer_case(batch=2, rows=2)
    empty, filled = case.ids.clone(), case.ids.clone()
    empty[0, 0, 0], filled[0, 0, 0] = -1, case.k.shape[1]
    one, other = (run_indexer_backward(namespace, case, ids=ids) for ids in (empty, filled))
    return not all(torch.equal(one[name], other[name]) for name in ("d_index_q", "d_index_k"))


def old_contents(namespace: ModelledNamespace) -> bool:
    """A caller's fp32 buffer that holds something: is the result added to it?"""
    case = indexer_case(batch=1, rows=2)
    buffer = torch.full(case.k.shape, 3.0)
    run_indexer_backward(namespace, case, d_index_k=buffer)
    return error(buffer, case.d_k) > BF16


def mixed_tokens(namespace: ModelledNamespace) -> bool:
    """32 heads, two neighbouring tokens with different keys: are their gradients mixed?"""
    case = attention_case(tokens=2, heads=32, lengths=[64, 64])
    return error(run_attention_backward(namespace, case)["dq"], case.d_q) > BF16


def unchecked_id(namespace: ModelledNamespace) -> bool:
    """An id equal to the key count: does it lead out of kv?"""
    case = attention_case(tokens=2, lengths=[64, 64])
    case.ids[1, 5] = case.kv.shape[0]
    attention_reference(case)
    try:
        result = run_attention_backward(namespace, case)
    except AddressFault:
        return True
    return error(result["dkv"], case.d_kv) > BF16


def lost_dkv(namespace: ModelledNamespace) -> bool:
    """64 slots over 40 keys: is dkv alone wrong?"""
    case = attention_case(tokens=2, keys=40, slots=40, lengths=[64, 64])
    case.ids = torch.cat([torch.full((2, 24), 3, dtype=torch.int32), case.ids], 1).contiguous()
    attention_reference(case)
    result = run_attention_backward(namespace, case)
    assert error(result["dq"], case.d_q) < BF16
    return error(result["dkv"], case.d_kv) > BF16


def uncompiled_lengths(namespace: ModelledNamespace) -> bool:
    """Lengths given: does the kernel compile?"""
    tensors = inputs(rows=1, slots=128, used=40)
    try:
        result = run(namespace, "attention", tensors, full_lengths(tensors[3]))
    except CompileFailure:
        return True
    return error(result, reference("attention", *tensors)) > BF16


def ignored_lengths(namespace: ModelledNamespace) -> bool:
    """128 heads of depth 512: do slots behind the length count?"""
    tensors = inputs(rows=1, heads=128, depth=512, used=40)
    result = run(namespace, "attention", tensors, int32(10).view(1, 1))
    return int((result[0, 0] > 0).sum()) != 10


def three_accumulators(namespace: ModelledNamespace) -> bool:
    """192 slots of 64 heads, three blocks: is one of them waited for without end?"""
    tensors = inputs(rows=1, slots=256, keys=256, used=192)
    tensors = (*tensors[:3], tensors[3][..., :192].contiguous())
    lengths = full_lengths(tensors[3])
    try:
        result = run(namespace, "attention", tensors, lengths)
    except KernelHang:
        return True
    return error(result, reference("attention", *tensors)) > BF16


@dataclass(frozen=True, kw_only=True)
class Line:
    """A defect's switch, the architecture it is on, and a call that shows it."""

    switch: str
    arch: str
    shows: Shows


TABLE = [
    Line(switch="d550", arch="sm100", shows=foreign_key),
    Line(switch="unzeroed_dk", arch="sm100", shows=old_contents),
    Line(switch="unzeroed_dk", arch="sm90", shows=old_contents),
    Line(switch="d384", arch="sm90", shows=mixed_tokens),
    Line(switch="d785", arch="sm90", shows=unchecked_id),
    Line(switch="d877", arch="sm100", shows=unchecked_id),
    Line(switch="d298", arch="sm100", shows=lost_dkv),
    Line(switch="d317", arch="sm100", shows=uncompiled_lengths),
    Line(switch="d1549", arch="sm100", shows=ignored_lengths),
    Line(switch="slot_arithmetic", arch="sm100", shows=three_accumulators),
]
lines = pytest.mark.parametrize("line", TABLE, ids=lambda line: f"{line.switch}-{line.arch}")
CLEAN = "1.32.0"


def _released(wanted: bool) -> list[tuple[Line, str]]:
    """Releases that have a line's defect, or those that lack it."""
    choose = having if wanted else lambda switch: lacking(switch, "sm90", "sm100")
    return [
        (line, version)
        for line in TABLE
        for version, arch in choose(line.switch)
        if arch == line.arch and _can_be_told(line, version)
    ]


def _can_be_told(line: Line, version: str) -> bool:
    """False where the release has no such argument, or another defect stands before this one."""
    if line.switch == "d550":
        return version >= "1.26.0"
    if line.switch in ("d1549", "slot_arithmetic") and version < "1.26.0":
        return False
    return not (line.switch == "d317" and version < "1.25.0")


@lines
def test_the_switch_alone_shows_the_defect(line):
    alone = modelled_namespace(CLEAN, line.arch, defects=(line.switch,))
    assert line.shows(alone), DEFECTS[line.switch].summary


@lines
def test_nothing_shows_without_defects(line):
    assert not line.shows(modelled_namespace(CLEAN, line.arch, defects="none"))


@pytest.mark.parametrize(
    ("line", "version"),
    _released(True),
    ids=lambda value: value if isinstance(value, str) else f"{value.switch}-{value.arch}",
)
def test_releases_that_shipped_it_show_it(line, version):
    assert line.shows(modelled_namespace(version, line.arch))


@pytest.mark.parametrize(
    ("line", "version"),
    _released(False),
    ids=lambda value: value if isinstance(value, str) else f"{value.switch}-{value.arch}",
)
def test_releases_without_it_do_not(line, version):
    assert not line.shows(modelled_namespace(version, line.arch))


def test_numbers_of_public_reports_have_a_switch():
    """https://github.com/NVIDIA/cudnn-frontend, issues and pull requests by number."""
    for number in (550, 384, 785, 877, 298, 317, 1549):
        defect = DEFECTS[f"d{number}"]
        assert defect.basis == "reported"
        assert defect.link.endswith(f"/{number}")
