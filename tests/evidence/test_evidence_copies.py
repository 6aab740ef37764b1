"""Direct against pinned copies with a stand-in device; a device that changes a table is seen."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from harness.evidence.copies import CP_SIZES, REPEATS, copy_evidence, layout_tables

LENGTHS = (128, 64, 64)


class HostDevice:
    """Copies on the host; the clock moves as told."""

    def __init__(self, direct_s: float, pinned_s: float) -> None:
        self.now = 0.0
        self._times = (direct_s, pinned_s)

    def direct(self, host: torch.Tensor) -> torch.Tensor:
        self.now += self._times[0]
        return host.clone()

    def pinned(self, host: torch.Tensor) -> torch.Tensor:
        self.now += self._times[1]
        return host.clone()


class SpoilingDevice(HostDevice):
    """Loses one entry of what it pins."""

    def pinned(self, host: torch.Tensor) -> torch.Tensor:
        spoilt = super().pinned(host)
        spoilt[-1] += 1
        return spoilt


def test_tables_arrive_equal_and_the_ratio_is_direct_over_pinned():
    device = HostDevice(3.0, 2.0)
    found = list(copy_evidence(LENGTHS, device, global_rank=0, clock=lambda: device.now))
    assert {(record.cp_size, record.table) for record in found} == {
        (cp_size, table) for cp_size in CP_SIZES for table in ("query_positions", "key_reorder")
    }
    for record in found:
        assert record.equal is True
        assert record.repeats == REPEATS
        assert (record.direct_s, record.pinned_s) == (3.0, 2.0)
        assert record.ratio == record.ratio_low == record.ratio_high == 1.5


def test_the_spread_is_that_of_pairs():
    ticks = count()
    found = list(
        copy_evidence(LENGTHS, HostDevice(0, 0), global_rank=0, clock=lambda: next(ticks) ** 2)
    )
    assert all(record.ratio_low < record.ratio <= record.ratio_high for record in found)


def test_planted_a_changed_table_is_not_equal():
    device = SpoilingDevice(1.0, 1.0)
    found = list(copy_evidence(LENGTHS, device, global_rank=0, clock=lambda: device.now))
    assert {record.equal for record in found} == {False}


def test_without_a_device_nothing_is_measured_and_the_record_says_why():
    found = list(copy_evidence(LENGTHS, None, global_rank=0, why_not="missing usable GPU"))
    assert len(found) == 2 * len(CP_SIZES)
    assert {(record.equal, record.why_not) for record in found} == {(None, "missing usable GPU")}


@pytest.mark.parametrize("cp_size", CP_SIZES)
def test_the_tables_are_those_of_the_pack(cp_size):
    tables = layout_tables(LENGTHS, cp_size)
    order = tables["key_reorder"]
    assert torch.equal(order.sort().values, torch.arange(order.numel()))
    assert tables["query_positions"].numel() == order.numel() // cp_size
