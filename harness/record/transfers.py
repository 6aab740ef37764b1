"""Transfer evidence: where a forward waits for the device, and what it copies to or from it."""

from __future__ import annotations

from dataclasses import dataclass

HOST_READ = "host_read"
"""The host reads a device value, and waits for it."""
DATA_SHAPE = "data_shape"
"""The shape of a result depends on device values: the host reads its size, and waits."""
TO_HOST = "to_host"
"""A copy from device to host."""
TO_DEVICE = "to_device"
"""A copy from host to device."""
WAIT = "wait"
"""An explicit wait for the device."""

SYNCHRONISING = (HOST_READ, DATA_SHAPE, WAIT)
"""Kinds that always make the host wait for the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferSite:
    """One source line that waits or copies, in one phase.

    Attributes:
        kind: ``host_read``, ``data_shape``, ``to_host``, ``to_device`` or ``wait``.
        operation: Operator as torch names it, such as ``aten.nonzero``.
        site: File relative to the build, and line, such as ``megatron/core/a.py:12``.
        function: Function that holds the line.
        phase: Phase in which it happened.
        count: How often.
        bytes: Bytes copied, all together; 0 for what copies no tensor.
        pinned: Whether the host side of a copy is pinned; None where nothing is copied.
        blocking: Whether the host waits until it is done.
        between_collectives: Whether collectives of the same forward stand before and after it.
    """

    kind: str
    operation: str
    site: str
    function: str
    phase: str
    count: int
    bytes: int = 0
    pinned: bool | None = None
    blocking: bool = True
    between_collectives: bool = False

    @property
    def synchronises(self) -> bool:
        """True when the host waits for a value, a size or the device itself."""
        return self.kind in SYNCHRONISING or (self.kind == TO_HOST and self.blocking)

    @property
    def hang_risk(self) -> bool:
        """True for a blocking copy between collectives.

        A rank that waits in it for its device enters the next collective late, and where the device
        waits for that collective's peers, never.
        """
        return self.kind in (TO_DEVICE, TO_HOST) and self.blocking and self.between_collectives


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferEvidence:
    """Waits and copies of one layer in one forward.

    Attributes:
        layer: Layer number; 0 for what runs before the first layer.
        how: ``device`` (seen on a GPU) or ``look_alike`` (tensors that only claim to be on one).
        waits_reported: Synchronising calls that the CUDA runtime's own check reported in the whole
            forward; None where it did not run.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int
    how: str
    sites: tuple[TransferSite, ...] = ()
    waits_reported: int | None = None

    @property
    def host_reads(self) -> int:
        """Times the host waited for a value, a size or the device."""
        return sum(site.count for site in self.sites if site.synchronises)

    @property
    def copies_to_device(self) -> int:
        """Copies from host to device."""
        return sum(site.count for site in self.sites if site.kind == TO_DEVICE)
