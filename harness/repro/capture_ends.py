"""How a job ended, as its capture tells it: which rank counts, and the signature of its fault."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.record.verdict import Verdict
from harness.repro.capture_records import Capture, CaptureError, Died, Rank
from harness.repro.signature import Signature

_ECHO = ("torch/distributed/",)
"""Where exceptions come out that are mostly the echo of another rank's end."""
_OURS = ("KeyboardInterrupt", "SystemExit")
_CUDA = re.compile(
    r"illegal memory access|misaligned address|invalid address space|invalid program counter"
    r"|illegal instruction|hardware stack error|CUDA_ERROR_ILLEGAL_ADDRESS|Address(?:Fault| fault)"
)
_CUDA_MEMORY = re.compile(r"out of memory|CUDA_ERROR_OUT_OF_MEMORY", re.IGNORECASE)
_MODELLED = re.compile(
    r"(\w{1,60}): .{0,300} \((wrong_row|past_tensor|past_allocation|int32_overflow)\)"
)
_KERNELS = re.compile(
    r"\b(indexer_forward_top_k|indexer_top_k|indexer_forward|flash_mla_sparse_fwd|"
    r"sparse_attention_backward|dense_indexer_backward|indexer_backward|"
    r"sparse_attn_score_recompute|dense_attn_score_recompute)(?:_wrapper)?(?![a-z_])"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The rank whose history counts.

    Attributes:
        microbatch: Its last one.
        how: Why this rank, in one sentence.
        died: The exception, None where it died without one or did not die.
    """

    rank: int
    microbatch: int
    how: str
    died: Died | None
    is_clean: bool


def chosen_end(capture: Capture, wanted: int | None = None) -> End:
    """Choose the rank whose history led to the fault.

    First one that a signal killed; then the earliest exception that is no echo of a collective;
    then, among ranks that stopped without a word, the one whose last line is oldest; then whatever
    else is there.

    Raises:
        CaptureError: when the rank asked for is not in the capture.
    """
    if wanted is not None:
        if wanted not in capture.ranks:
            held = ", ".join(map(str, list(capture.ranks)[:16]))
            raise CaptureError(
                f"{capture.folder}: expected files of rank {wanted}, found those of {held}; "
                "choose one of them"
            )
        return _end(capture.ranks[wanted], "rank chosen by hand")
    ranks = list(capture.ranks.values())
    killed = [rank for rank in ranks if rank.fatal is not None]
    raised = [rank for rank in ranks if rank.died is not None]
    silent = [rank for rank in ranks if not (rank.ended or rank.died or rank.fatal)]
    groups = (
        ([rank for rank in killed if _is_cause(rank)], "a signal killed it: {signal}"),
        (
            [rank for rank in raised if not _is_echo(rank.died)],
            "its exception is the earliest that is no echo of a collective",
        ),
        ([rank for rank in silent if not rank.was_asked], "it stopped without a word"),
        (killed, "a signal killed it: {signal}"),
        (raised, "{left}"),
        (silent, "it was told to end, like all others"),
    )
    for group, why in groups:
        if group:
            first = min(group, key=_end_s)
            signal = "" if first.fatal is None else first.fatal.type
            left = "" if first.died is None else _how_it_left(first.died)
            return _end(first, why.format(signal=signal, left=left) + _doubt(group))
    return _end(ranks[0], "no rank shows a fault; it is the first")


def _how_it_left(died: Died) -> str:
    """Say of an exception that tells no cause what it was; no other rank's is earlier."""
    if died.type in _OURS:
        return f"it left by {died.type}, and no exception tells of a cause before that"
    return "its exception is the earliest, out of a collective like all others"


def _is_cause(rank: Rank) -> bool:
    """Whether a signal is the process's own fault: a watchdog of collectives ends it by SIGABRT."""
    return rank.fatal is not None and rank.fatal.type != "SIGABRT"


def _end_s(rank: Rank) -> float:
    return rank.last_s if rank.died is None else rank.died.time_s


def _doubt(group: list[Rank]) -> str:
    if len(group) == 1:
        return ""
    others = f"{len(group) - 1} more {'does' if len(group) == 2 else 'do'}"
    return (
        f" ({others}; of these it was silent first, which need not mean that it failed first: the "
        "launcher's log may say, and --rank chooses)"
    )


def signature_from(capture: Capture, end: End) -> Signature:
    """Return the signature of how a rank ended.

    The kernel is named only where the job launched kernels one at a time: otherwise an error shows
    at some later call.

    Raises:
        CaptureError: when the capture shows no fault, or does not tell what kind it is.
    """
    died = end.died
    if died is None and end.is_clean:
        raise CaptureError(
            f"rank {end.rank} ended by itself: the capture shows no fault to make a signature of; "
            "take one from a run with dsa-harness minimise"
        )
    rank = capture.ranks[end.rank]
    if died is None and (rank.broken or not rank.is_whole):
        raise CaptureError(
            f"rank {end.rank} tells no exception, and part of its files cannot be read: what kind "
            "of fault it was is not known; leave --signature out, or choose another rank by --rank"
        )
    if died is None:
        # Which signal it was, nobody was left to write.
        return Signature(verdict=Verdict.CRASH)
    if died is rank.fatal:
        return Signature(verdict=Verdict.CRASH, exception=died.type)
    modelled = _MODELLED.search(died.text)
    if modelled is not None:
        return Signature(
            verdict=Verdict.MEMORY_FAULT, kernel=modelled[1], address_class=modelled[2]
        )
    if _CUDA.search(died.text) or _CUDA.search(died.type):
        kernel = kernel_of(died) if _launches_block(rank) else None
        return Signature(verdict=Verdict.MEMORY_FAULT, kernel=kernel)
    if "MemoryError" in died.type or _CUDA_MEMORY.search(died.text):
        return Signature(verdict=Verdict.OUT_OF_MEMORY)
    if died.statement.startswith(("raise", "assert")) and _in_build(died):
        return Signature(verdict=Verdict.REFUSED, exception=died.type)
    return Signature(verdict=Verdict.CRASH, exception=died.type)


def kernel_of(died: Died) -> str | None:
    """Return the kernel whose wrapper is the innermost in the traceback, None without one."""
    for frame in reversed(died.frames):
        found = _KERNELS.search(frame.rsplit(":", 1)[-1])
        if found is not None:
            # As records name it: by its wrapper, which FlashMLA has none of.
            return found[1] if found[1] == "flash_mla_sparse_fwd" else f"{found[1]}_wrapper"
    return None


def _launches_block(rank: Rank) -> bool:
    environment = rank.process.get("environment")
    return isinstance(environment, dict) and environment.get("CUDA_LAUNCH_BLOCKING") == "1"


def _end(rank: Rank, why: str) -> End:
    last = max(rank.microbatches)
    unread = rank.unread_last
    is_whole = rank.is_whole and not rank.broken
    which = f"whose last {'' if is_whole else 'readable '}microbatch is {last}"
    if unread is not None:
        which = f"which ended with microbatch {unread}, whose own line cannot be read"
    return End(
        rank=rank.rank,
        microbatch=last,
        how=f"rank {rank.rank}, {which}: {why}",
        died=rank.died or rank.fatal,
        is_clean=rank.ended and rank.died is None,
    )


def _is_echo(died: Died | None) -> bool:
    if died is None or died.type in _OURS:
        return True
    return any(part in frame for frame in died.frames[-3:] for part in _ECHO)


def _in_build(died: Died) -> bool:
    innermost = died.frames[-1] if died.frames else ""
    return "/megatron/" in innermost or "/cudnn/" in innermost
