"""The gates in order: of any machine, and of one with a GPU."""

from __future__ import annotations

import sys

from launch.gates.gate import Gate

_PROBES = (sys.executable, "-m", "launch.gates.probes")
_RUNS = (sys.executable, "-m", "launch.gates.runs")
_PLAIN = "scenarios/hardware/selftest-plain.yaml"
_SCORER = "scenarios/hardware/selftest-scorer.yaml"
_CUDNN = "scenarios/hardware/selftest-cudnn.yaml"
_MODELLED = "scenarios/hardware/selftest-modelled.yaml"
# Layers of Megatron's own stand in for a missing Transformer Engine: groups and layout are tried.
_SHARED = (_PLAIN, "-k", "cp4", "--ranks", "4", "--ranks-per-gpu", "4", "--allow-mixed")
_SPREAD = (_PLAIN, "-k", "cp2", "--ranks", "2", "--allow-mixed")
_DOCS = "see docs/first-gpu.md"


def machine_gates() -> tuple[Gate, ...]:
    """Return the gates that need no GPU: processes, collectives, verdicts and planted faults."""
    return (
        Gate(
            name="processes",
            what="rank processes are forked from a server that has imported torch and Megatron",
            command=(*_PROBES, "fork", "cpu"),
            limit_s=120,
            todo="install the project as the README says, then run `dsa-harness doctor`",
        ),
        Gate(
            name="gloo",
            what="gloo adds up over 1, 2 and 4 ranks",
            command=(*_PROBES, "canary", "gloo", "1", "2", "4"),
            limit_s=400,
            todo="see that the loopback interface is up and GLOO_SOCKET_IFNAME names none that is "
            "missing",
        ),
        Gate(
            name="packed CP scenario",
            what="a packed scenario over two ranks passes with modelled kernels",
            command=(*_RUNS, "pass", _MODELLED, "--ranks", "2"),
            limit_s=240,
            todo=f"run `dsa-harness run {_MODELLED} --ranks 2` and read its report",
            behind=("processes", "gloo"),
        ),
        Gate(
            name="planted fault",
            what="a planted address fault in the scorer is found, in that phase",
            command=(
                *_RUNS, "memory_fault", "--phase", "score", _MODELLED, "--ranks", "2",
                "--inject", "address_fault@1:score",
            ),
            limit_s=240,
            todo="a verdict of this machine cannot be trusted; report it with the lines above",
            behind=("packed CP scenario",),
        ),
    )  # fmt: skip


def hardware_gates() -> tuple[Gate, ...]:
    """Return the gates of a machine with one GPU or more, the cheapest first."""
    return (*_device_gates(), *_kernel_gates(), *_scenario_gates(), *_fault_gates())


def _device_gates() -> tuple[Gate, ...]:
    return (
        Gate(
            name="fork probe",
            what="a forked child can use CUDA (else rank processes are spawned)",
            command=(*_PROBES, "fork", "cuda"),
            limit_s=120,
            todo=f"something imports CUDA before the fork; {_DOCS}",
        ),
        Gate(
            name="context",
            what="every device multiplies rightly",
            command=(*_PROBES, "context"),
            limit_s=120,
            todo="see `nvidia-smi`: driver, other users' memory, and MIG slices",
            behind=("fork probe",),
        ),
        Gate(
            name="NCCL",
            what="NCCL adds up over each group size that there are GPUs for",
            command=(*_PROBES, "canary", "nccl", "1", "2", "4", "8"),
            limit_s=300,
            todo="set NCCL_DEBUG=INFO and run it again; in a container, see that /dev/shm is large "
            "enough",
            behind=("context",),
        ),
        Gate(
            name="gloo on a shared GPU",
            what="gloo adds up tensors of one device over 2 and 4 ranks",
            command=(*_PROBES, "canary", "gloo", "2", "4"),
            limit_s=300,
            todo="the device may be in exclusive mode: `nvidia-smi -q -d COMPUTE`",
            behind=("context",),
        ),
    )


def _kernel_gates() -> tuple[Gate, ...]:
    return (
        Gate(
            name="indexer kernels",
            what="forward and top-k of the installed release answer as their models do",
            command=(
                *_PROBES, "kernels", "indexer_forward/limits/ratio1/6x40",
                "indexer_forward/offsets/7", "indexer_top_k/lengths/149rows/top64",
            ),
            limit_s=420,
            todo="run `dsa-harness certify` for the whole comparison, and send its file back",
            behind=("context",),
        ),
        Gate(
            name="FlashMLA",
            what="sparse attention answers as its model does",
            command=(*_PROBES, "flash_mla", "flash_mla/heads/64", "flash_mla/ids/minus_one"),
            limit_s=300,
            todo="install flash_mla for this CUDA, or run level scorer alone",
            behind=("context",),
        ),
    )  # fmt: skip


def _scenario_gates() -> tuple[Gate, ...]:
    return (
        Gate(
            name="packed CP over gloo",
            what="four ranks share one GPU and select the right keys, scored by torch",
            command=(*_RUNS, "pass", *_SHARED),
            limit_s=420,
            todo=f"run `dsa-harness run {' '.join(_SHARED)}` and read its report",
            behind=("gloo on a shared GPU",),
        ),
        Gate(
            name="packed CP over NCCL",
            what="two GPUs select the right keys, scored by torch",
            command=(*_RUNS, "pass", *_SPREAD),
            limit_s=420,
            todo=f"run `dsa-harness run {' '.join(_SPREAD)}` and read its report",
            behind=("NCCL",),
        ),
        Gate(
            name="cuDNN scorer",
            what="the real indexer selects the right keys of one pack without CP",
            command=(*_RUNS, "pass", _CUDNN, "--ranks", "1"),
            limit_s=420,
            todo=f"run `dsa-harness run {_CUDNN} --ranks 1` and read its report",
            behind=("indexer kernels",),
        ),
    )


def _fault_gates() -> tuple[Gate, ...]:
    planted = ("--ranks", "1", "--inject", "device_fault@0:score")
    return (
        Gate(
            name="planted illegal address",
            what="a stray write in phase score is a memory fault of that phase",
            command=(*_RUNS, "memory_fault", "--phase", "score", _SCORER, *planted),
            limit_s=300,
            todo="no verdict about addresses can be trusted here; report it with the lines above",
            behind=("context",),
        ),
        Gate(
            name="core dump",
            what="the same stray write leaves a core dump",
            command=(*_RUNS, "memory_fault", "--core-dump", "--coredump", _SCORER, *planted),
            limit_s=420,
            todo="see that the run folder's file system has room, and CUDA_ENABLE_COREDUMP_ON_"
            "EXCEPTION is not set to 0",
            behind=("planted illegal address",),
        ),
        Gate(
            name="sanitizer",
            what="compute-sanitizer names the same stray write",
            command=(
                *_RUNS, "memory_fault", "--finding", "--sanitizer", "memcheck@0", _SCORER, *planted,
            ),
            limit_s=600,
            todo="install the extra `debug`, or the CUDA toolkit",
            behind=("planted illegal address",),
        ),
        Gate(
            name="graph capture",
            what="a captured graph replays with new numbers",
            command=(*_PROBES, "graph"),
            limit_s=120,
            todo="see the driver's version against the one torch was built for",
            behind=("context",),
        ),
    )  # fmt: skip
