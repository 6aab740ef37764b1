"""Tables of the packed all-gather layout, made on the host from lengths.

The zigzag split cuts a sequence of length L into 2 * cp_size chunks; rank r holds chunk r (front)
and chunk 2 * cp_size - 1 - r (back). Local rows are the front and back of each sequence in order,
then the rank's share of rows that no sequence owns (tail). Gathered rows are those of rank 0, of
rank 1 and so on.

The gathered rows are a permutation of the packed ones that is known in closed form, so that its
inverse is one scatter: no sort, and no value that a device would have to hand over.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """One stream (queries or keys) of a pack, cut for context parallelism.

    Attributes:
        starts: ``[n]`` packed positions where sequences begin, empty ones left out.
        lengths: ``[n]`` their lengths, multiples of ``2 * cp_size``.
        end: Packed position behind the last sequence.
        cp_size: Ranks.
        rows: Local rows of each rank, tail included.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    end: int
    cp_size: int
    rows: int

    @property
    def owned(self) -> int:
        """Local rows that a sequence owns."""
        return int(self.lengths.sum()) // self.cp_size

    @property
    def tail(self) -> int:
        """Local rows that no sequence owns."""
        return self.rows - self.owned


def split(boundaries: torch.Tensor, cp_size: int, rows: int | None = None) -> Split:
    """Read prefix sums of padded lengths.

    Args:
        boundaries: ``[sequences + 1]`` prefix sums on the host.
        cp_size: Ranks.
        rows: Local rows of each rank; as many as the sequences need, when None.

    Raises:
        ValueError: a length that does not split.
        RuntimeError: fewer rows than the sequences need.
    """
    sums = boundaries.to(torch.int64)
    lengths = sums.diff()
    uneven = lengths[lengths % (2 * cp_size) != 0]
    if uneven.numel():
        length = int(uneven[0])
        if length % cp_size:
            raise ValueError(
                "Packed DSA CP expects per-sequence padded lengths divisible by cp_size, got "
                f"seq_len={length}, cp_size={cp_size}"
            )
        raise ValueError(
            "Packed DSA CP expects per-rank packed sequence lengths divisible by 2, got "
            f"local_seq_len={length // cp_size}, seq_len={length}, cp_size={cp_size}"
        )
    kept = lengths > 0
    cut = Split(
        starts=sums[:-1][kept],
        lengths=lengths[kept],
        end=int(sums[-1]),
        cp_size=cp_size,
        rows=int(lengths.sum()) // cp_size if rows is None else rows,
    )
    if cut.tail < 0:
        raise RuntimeError(
            f"{cut.owned} local rows are due by the boundaries at cp_size={cp_size}, but the rank "
            f"has {cut.rows}; the boundaries belong to another pack or CP size"
        )
    return cut


def local_positions(cut: Split, cp_rank: int) -> torch.Tensor:
    """Return the packed position of each local row of a rank, ``[rows]`` int64.

    Tail rows are numbered behind all sequences, rank after rank with a stride of the local rows,
    as Megatron does.
    """
    half = cut.lengths // (2 * cut.cp_size)
    front = cut.starts + cp_rank * half
    back = cut.starts + cut.lengths - (cp_rank + 1) * half
    firsts = torch.stack((front, back), dim=1).flatten()
    positions = _runs(firsts, half.repeat_interleave(2))
    tail = cut.end + cp_rank * cut.rows + torch.arange(cut.tail)
    return torch.cat((positions, tail))


def gathered_index(cut: Split) -> torch.Tensor:
    """Return, for each packed row, where it stands among the gathered ones: ``[cp * rows]`` int64.

    Rows of sequences come first in packed order, then tail rows rank by rank.
    """
    half = (cut.lengths // (2 * cut.cp_size)).unsqueeze(0)
    # Numbered without the room that boundaries may leave before their first sequence.
    begins = (cut.lengths.cumsum(0) - cut.lengths).unsqueeze(0)
    ranks = torch.arange(cut.cp_size).unsqueeze(1)
    front = begins + ranks * half
    back = begins + cut.lengths.unsqueeze(0) - (ranks + 1) * half
    tails = (cut.owned * cut.cp_size + ranks * cut.tail).expand(cut.cp_size, 1)
    firsts = torch.cat((torch.stack((front, back), dim=2).flatten(1), tails), dim=1)
    each = torch.cat((half.repeat_interleave(2, dim=1), torch.tensor([[cut.tail]])), dim=1)
    packed = _runs(firsts.flatten(), each.expand(cut.cp_size, -1).flatten())
    index = torch.empty_like(packed)
    index[packed] = torch.arange(packed.numel())
    return index


def _runs(firsts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Concatenate runs of consecutive numbers: ``firsts[i], firsts[i] + 1, ...``."""
    shift = firsts - (counts.cumsum(0) - counts)
    total = int(counts.sum())
    return shift.repeat_interleave(counts, output_size=total) + torch.arange(total)


def to_device(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a table made on the host; to a GPU from pinned memory, so that nobody waits."""
    if device.type == "cpu":
        return table
    return table.pin_memory().to(device, non_blocking=True)
