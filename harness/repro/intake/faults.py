"""How it failed: tracebacks, CUDA errors, signals, time-outs and what a scheduler says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.repro.intake.facts import Fact
from harness.repro.intake.lines import Line

KERNELS = (
    "indexer_forward_top_k",
    "indexer_top_k",
    "indexer_forward",
    "flash_mla_sparse_fwd",
    "sparse_attention_backward",
    "dense_indexer_backward",
    "indexer_backward",
    "sparse_attn_score_recompute",
    "dense_attn_score_recompute",
)
_FRAME = re.compile(r"\s{0,12}File \"([^\"]{1,300})\", line (\d{1,7}), in (\S{1,120})")
_EXCEPTION = re.compile(
    r"([A-Za-z_][\w.]{0,120}(?:Error|Exception|Fault|Interrupt|Exit|Timeout|Warning)): (.{0,2000})"
)
_KERNEL = re.compile(rf"\b({'|'.join(KERNELS)})(?:_wrapper)?(?![a-z_])")
_SIMPLE: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        "cuda_error",
        ("illegal", "misaligned", "device-side", "launch failure", "cuda", "capturing"),
        re.compile(
            r"(illegal memory access|misaligned address|device-side assert"
            r"|unspecified launch failure|cuda_error_[a-z_]{3,40}|illegal instruction was"
            r"|operation not permitted when stream is capturing)"
        ),
    ),
    (
        "out_of_memory",
        ("memory", "oom"),
        re.compile(r"(out of memory|oom[_-]kill|out_of_memory)"),
    ),
    (
        "signal",
        ("sig", "segmentation", "exitcode", "bus error", "core dumped"),
        re.compile(
            r"(signal \d{1,2} \(sig[a-z]{3,6}\)|\bsig(?:segv|bus|abrt|ill)\b|segmentation fault"
            r"|exitcode\s{0,3}: -\d{1,2}\b|bus error|core dumped)"
        ),
    ),
    (
        "collective_timeout",
        ("timeout", "worknccl"),
        re.compile(r"(collective operation timeout|worknccl\([^)]{0,200}\) ran for \d{1,9})"),
    ),
    ("time_limit", ("time limit",), re.compile(r"(due to time limit)")),
    (
        "node_failure",
        ("node", "preempted", "boot_fail"),
        re.compile(r"(node_fail\b|due to node failure|\bpreempted\b|boot_fail)"),
    ),
    (
        "recompile",
        ("compil",),
        re.compile(r"(recompil\w{1,8}|compil(?:ing|ed) (?:kernel|for new shape))"),
    ),
    (
        "graph_warning",
        ("graph",),
        re.compile(r"(cuda[_ ]graph\w{0,12}[^.]{0,80}(?:warn|not supported|fail|captur))"),
    ),
    (
        "fallback",
        ("falling back", "unfused"),
        re.compile(r"(declined; falling back|falling back to \w{1,40}|unfused[_ ]bounds)"),
    ),
    ("nan", ("nan",), re.compile(r"((?:loss|grad)[^,]{0,30}\bnan\b)")),
)
"""Name, what a line must hold at least, and the pattern, all in small letters."""
_TASK = re.compile(r"srun: error: [\w.-]{1,80}: tasks? (\d{1,6})[\d,-]{0,80}: (.{1,80})")
_EXIT = re.compile(r"(?i)\bexit(?:ed with exit)? ?code:?\s{0,2}(-?\d{1,3})\b")
_ROOT_CAUSE = re.compile(r"rank\s{1,4}: (\d{1,6}) \(local_rank: \d{1,4}\)")


def fault_facts(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield what went wrong, in the order of the text."""
    in_traceback = False
    for line in lines:
        text = line.text
        if "Traceback (most recent call last)" in text:
            in_traceback = True
        elif found := _FRAME.match(text):
            frame = f"{found[1]}:{found[2]}:{found[3]}"
            yield Fact(name="frame", value=frame, line=line, form="traceback")
            yield from _kernel(found[3], line, "traceback")
            in_traceback = True
        elif text and text[0] not in " \t" and (found := _EXCEPTION.match(text)):
            form = "traceback" if in_traceback else "log"
            yield Fact(name="exception", value=found[1], line=line, form=form)
            yield from _kernel(found[2], line, form)
            in_traceback = False
        yield from _said(line)


def _said(line: Line) -> Iterator[Fact]:
    text = line.text
    small = text.lower()
    for name, hints, pattern in _SIMPLE:
        if any(hint in small for hint in hints) and (found := pattern.search(small)):
            value = text[found.start(1) : found.end(1)] if len(small) == len(text) else found[1]
            yield Fact(name=name, value=value, line=line, form="log")
    if found := _TASK.search(text):
        yield Fact(name="failed_rank", value=int(found[1]), line=line, form="Slurm log")
        yield Fact(name="exit", value=found[2], line=line, form="Slurm log")
    elif found := _ROOT_CAUSE.search(text):
        yield Fact(name="failed_rank", value=int(found[1]), line=line, form="log")
    if text.startswith(("slurmstepd:", "srun: error")):
        yield Fact(name="scheduler", value="slurm", line=line, form="Slurm log")
        if code := _EXIT.search(text):
            yield Fact(name="exit_code", value=int(code[1]), line=line, form="Slurm log")


def _kernel(text: str, line: Line, form: str) -> Iterator[Fact]:
    if found := _KERNEL.search(text):
        yield Fact(name="kernel", value=found[1], line=line, form=form)
