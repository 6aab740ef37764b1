"""GPU and versions, as ``collect_env``, ``pip``, logs and commands write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.repro.intake.facts import Fact
from harness.repro.intake.lines import Line, without_comment

PACKAGES = {
    "nvidia-cudnn-frontend": "cudnn_frontend",
    "nvidia_cudnn_frontend": "cudnn_frontend",
    "cudnn-frontend": "cudnn_frontend",
    "nvidia-cutlass-dsl": "cute_dsl",
    "megatron-core": "megatron_core",
    "megatron_core": "megatron_core",
    "nvidia-cudnn-cu12": "cudnn",
    "nvidia-cudnn-cu13": "cudnn",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
    "transformer-engine": "transformer_engine",
    "transformer_engine": "transformer_engine",
    "flash-mla": "flash_mla",
    "flash_mla": "flash_mla",
    "torch": "torch",
}
_VERSION = r"v?(\d{1,6}(?:\.\d{1,6}){1,4}(?:[-+.]?(?:rc|dev|post|a|b|cu|git)?[\w.]{0,24})?)"
_PACKAGE = re.compile(rf"\b({'|'.join(map(re.escape, PACKAGES))})(?:==|@| {{1,60}}|: ?){_VERSION}")
_LABELS = (
    (re.compile(rf"PyTorch version: {_VERSION}"), "torch"),
    (re.compile(rf"CUDA used to build PyTorch: {_VERSION}"), "cuda"),
    (re.compile(rf"Nvidia driver version: {_VERSION}"), "driver"),
    (re.compile(rf"Driver Version: {_VERSION}"), "driver"),
    (re.compile(rf"NCCL version:? {_VERSION}"), "nccl"),
    (re.compile(rf"cuDNN (?:backend )?version: {_VERSION}"), "cudnn"),
    (re.compile(rf"(?i)cudnn[- ]frontend(?: version)?:? {_VERSION}"), "cudnn_frontend"),
    (re.compile(rf"(?i)megatron[- ]core(?: version)?:? {_VERSION}"), "megatron_core"),
    (re.compile(rf"(?i)\bCUTLASS(?: DSL)?(?: version)?:? {_VERSION}"), "cute_dsl"),
)
_COMMIT = re.compile(
    r"(?i)megatron[\w -]{0,20}?(?:commit|revision|sha|HEAD|@)\s{0,3}[:=(]?\s{0,3}([0-9a-f]{7,40})\b"
)
_BRANCH = re.compile(r"(?i)megatron[\w -]{0,20}?branch\s{0,3}[:=]\s{0,3}([\w./-]{1,80})")
_GPU = re.compile(
    r"\b(?:NVIDIA )?((?:GB300|GB200|GB10|B300|B200|B100|GH200|H200|H100|H800|H20|A100|A800|L40S)"
    r"(?:[ -](?:SXM\d?|PCIe|NVL|HBM3e?|\d{2,3} ?GB)){0,3})\b"
)
ARCHITECTURES = {
    "GB300": "sm100",
    "GB200": "sm100",
    "B300": "sm100",
    "B200": "sm100",
    "B100": "sm100",
    "GH200": "sm90",
    "H200": "sm90",
    "H100": "sm90",
    "H800": "sm90",
    "H20": "sm90",
}
"""Architecture of the data centre parts that the DSA kernels serve."""
_VARIABLE = re.compile(
    r"\b(CUDA_LAUNCH_BLOCKING|TORCH_SHOW_CPP_STACKTRACES|CUDA_DEVICE_MAX_CONNECTIONS"
    r"|NVTE_ALLOW_NONDETERMINISTIC_ALGO|NCCL_ALGO)=(\w{1,20})\b"
)
_HINTS = (
    "ersion",
    "==",
    "NVIDIA",
    "GPU",
    "H100",
    "H200",
    "B200",
    "B300",
    "H800",
    "GB",
    "torch",
    "Torch",
    "cudnn",
    "egatron",
    "MEGATRON",
    "CUTLASS",
    "cutlass",
    "nccl",
    "NCCL",
    "transformer",
    "flash",
    "CUDA_",
)


def software_facts(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield versions, GPUs and switches of the environment."""
    for line in lines:
        text = line.text
        if not any(hint in text for hint in _HINTS):
            continue
        form = "environment" if text.startswith(("[pip", "[conda", "GPU ", "PyTorch v")) else "text"
        found: dict[str, str] = {}
        for pattern, name in _LABELS:
            if match := pattern.search(text):
                found.setdefault(name, match[1].rstrip(".,;:)"))
        for match in _PACKAGE.finditer(text):
            found.setdefault(PACKAGES[match[1]], match[2].rstrip(".,;:)"))
        if match := _COMMIT.search(text):
            found["megatron_commit"] = match[1]
        if match := _BRANCH.search(text):
            found["megatron_branch"] = match[1]
        if (match := _GPU.search(text)) and "--" not in text:
            found["gpu"] = match[1]
        for match in _VARIABLE.finditer(without_comment(text)):
            yield Fact(name="variable", value=f"{match[1]}={match[2]}", line=line, form=form)
        for name, value in found.items():
            yield Fact(name=name, value=value, line=line, form=form)


def architecture(gpu: str) -> str | None:
    """Return the architecture of a GPU by its name, None for one that is not known here."""
    return ARCHITECTURES.get(re.split(r"[ -]", gpu)[0])
