"""Who likely owns what a night found. A guess by rules, shown with its reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from harness.record.verdict import Verdict
from reports.history.night import Entry


class Owner(enum.StrEnum):
    """Where to look first."""

    MEGATRON = "Megatron"
    CUDNN = "cuDNN"
    FLASH_MLA = "FlashMLA"
    NCCL = "NCCL"
    INFRASTRUCTURE = "infrastructure"
    HARNESS = "harness"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """An owner with the reason for the guess."""

    owner: Owner
    reason: str


_BY_VERDICT = {
    Verdict.INFRASTRUCTURE: (Owner.INFRASTRUCTURE, "rendezvous, node or file system failed"),
    Verdict.HARNESS_ERROR: (Owner.HARNESS, "the harness itself failed"),
    Verdict.WRONG_PATH: (Owner.MEGATRON, "the dispatcher chooses the path"),
    Verdict.WRONG_MEMO: (Owner.MEGATRON, "the layout memo is the caller's"),
    Verdict.STATE_LEAK: (Owner.MEGATRON, "groups and carriers are the caller's"),
    Verdict.REFUSED: (Owner.MEGATRON, "the build declined the configuration"),
    Verdict.CAPTURE_FAILED: (Owner.MEGATRON, "what blocks a capture is the caller's code"),
    Verdict.REPLAY_MISMATCH: (Owner.MEGATRON, "replays reuse the caller's buffers"),
}
_LIBRARIES = {
    "megatron_core": Owner.MEGATRON,
    "megatron_commit": Owner.MEGATRON,
    "cudnn_frontend": Owner.CUDNN,
    "cudnn": Owner.CUDNN,
    "cute_dsl": Owner.CUDNN,
    "flash_mla": Owner.FLASH_MLA,
    "nccl": Owner.NCCL,
    "driver": Owner.INFRASTRUCTURE,
}


def ownership(entry: Entry, moved: dict[str, tuple[str, str]]) -> Ownership:
    """Return who likely owns an entry's verdict.

    Args:
        entry: Tonight's entry.
        moved: Versions and facts that differ from the night it is compared with. One library that
            moved alone is the first suspect, whatever the verdict.
    """
    by_verdict = _BY_VERDICT.get(entry.verdict)
    if by_verdict is not None and by_verdict[0] in (Owner.INFRASTRUCTURE, Owner.HARNESS):
        return Ownership(owner=by_verdict[0], reason=by_verdict[1])
    suspects = {_LIBRARIES[name] for name in moved if name in _LIBRARIES}
    if len(suspects) == 1:
        names = [f"{name} {moved[name][0]} -> {moved[name][1]}" for name in moved if _is(name)]
        reason = "of the libraries it alone moved: " + ", ".join(names)
        return Ownership(owner=suspects.pop(), reason=reason)
    kernel = entry.kernel.lower()
    if "flash" in kernel or "sparse_fwd" in kernel:
        return Ownership(owner=Owner.FLASH_MLA, reason=f"the fault is in {entry.kernel}")
    if kernel or entry.verdict in (Verdict.MEMORY_FAULT, Verdict.COMPILE_FAILED):
        reason = f"the fault is in {entry.kernel or 'a kernel'}"
        return Ownership(owner=Owner.CUDNN, reason=reason)
    if entry.verdict is Verdict.HANG:
        return Ownership(owner=Owner.NCCL, reason="a hang; see which collective the ranks wait in")
    if by_verdict is not None:
        return Ownership(owner=by_verdict[0], reason=by_verdict[1])
    if entry.verdict in (Verdict.WRONG_SELECTION, Verdict.OUT_OF_BOUNDS):
        fused = entry.origin not in ("torch", "none", "not recorded")
        owner = Owner.CUDNN if fused else Owner.MEGATRON
        return Ownership(owner=owner, reason=f"the selection comes from {entry.origin} kernels")
    return Ownership(owner=Owner.UNKNOWN, reason="nothing points anywhere")


def _is(name: str) -> bool:
    return name in _LIBRARIES
