"""Whose fault an exception is, told by frames and instructions, never by words of a message."""

import sys
import types

import pytest
import torch
import torch.distributed as dist

from harness.kernels.addresses import AddressFault
from harness.record.evidence import AddressFaultEvidence
from harness.runtime import inject
from harness.runtime.blame import exception_evidence


def _module(name, text):
    """Compile functions as if they stood in a module of that name."""
    module = types.ModuleType(name)
    exec(compile(text, f"/src/{name.replace('.', '/')}.py", "exec"), module.__dict__)
    return module


BUILD = _module(
    "megatron.core.transformer.dsa",
    "def refuse(x): raise ValueError('packed input is not supported')\n"
    "def check(x): assert x is None, 'bad'\n"
    "def index(x): return [][3]\n"
    "def call(inner): return inner(1)\n"
    "def reraise(inner):\n"
    "    try:\n"
    "        inner(1)\n"
    "    finally:\n"
    "        pass\n",
)
MODEL = _module(
    "harness.kernels.planted",
    "import torch\n"
    "def decline(x): raise ValueError('top_k above 2048')\n"
    "def slip(x): return torch.aminmax(torch.empty(0))\n",
)


def _evidence(function, *args):
    with pytest.raises(BaseException) as caught:
        function(*args)
    return exception_evidence(caught.value)


def test_a_refusal_of_the_build():
    for function in (BUILD.refuse, BUILD.check):
        found = _evidence(function, 1)
        assert (found.origin, found.declined) == ("build", True)


def test_an_operation_that_fails_in_the_build_is_no_refusal():
    found = _evidence(BUILD.index, 1)
    assert (found.type, found.origin, found.declined) == ("IndexError", "build", False)
    assert "dsa.py" in found.traceback


def test_an_operation_of_torch_that_fails_belongs_to_its_caller():
    found = _evidence(BUILD.call, lambda _: torch.ones(2) @ torch.ones(3))
    assert found.origin == "build"
    assert not found.declined
    assert _evidence(lambda: torch.ones(2) @ torch.ones(3)).origin == "harness"


def test_a_folder_that_is_called_like_a_package_decides_nothing():
    other = _module("somewhere", "def fail(x): raise ValueError('x')\n")
    other.fail.__code__ = other.fail.__code__.replace(co_filename="/opt/megatron/lib/x.py")
    assert _evidence(other.fail, 1).origin == "harness"


def test_a_modelled_kernel_speaks_for_the_build_only_on_purpose():
    assert _evidence(BUILD.call, MODEL.decline).origin == "build"
    assert _evidence(BUILD.call, MODEL.decline).declined
    assert _evidence(BUILD.call, MODEL.slip).origin == "harness"
    assert _evidence(MODEL.decline, 1).origin == "harness"


def test_an_overlay_is_the_build_as_it_runs():
    overlay = _module(
        "harness.overlays.planted",
        "def refuse(x): raise ValueError('too few rows')\ndef slip(x): return [][3]\n",
    )
    refused, slipped = (_evidence(f, 1) for f in (overlay.refuse, overlay.slip))
    assert (refused.origin, refused.declined) == ("build", True)
    assert (slipped.origin, slipped.declined) == ("build", False)


def test_an_exception_that_passes_through_keeps_its_origin():
    found = _evidence(BUILD.reraise, MODEL.slip)
    assert found.origin == "harness"


def test_an_injected_exception():
    journal = types.SimpleNamespace(current=None)
    found = _evidence(BUILD.call, lambda _: inject._exception(journal))
    assert (found.origin, found.declined) == ("injected", False)


def test_an_address_fault_brings_its_record():
    record = AddressFaultEvidence(
        kernel="k", operand="o", row=1, index=2, element_offset=3, allowed=(0, 2), klass="wrong_row"
    )
    found = exception_evidence(AddressFault(record))
    assert found.address_fault == record
    assert found.type == "harness.kernels.addresses.AddressFault"


def test_running_out_of_memory():
    assert exception_evidence(MemoryError()).out_of_memory
    assert exception_evidence(torch.OutOfMemoryError("CUDA out of memory")).out_of_memory
    assert not exception_evidence(RuntimeError("a word about memory")).out_of_memory
    # The allocator of the CPU has no class of its own.
    found = _evidence(lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert found.out_of_memory


def test_errors_of_collectives():
    assert exception_evidence(dist.DistBackendError("NCCL error")).in_collective
    gloo = "[/src/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: reset by peer"
    assert exception_evidence(RuntimeError(gloo)).in_collective
    assert not exception_evidence(RuntimeError("gloo is a word")).in_collective
    found = _evidence(lambda: dist.all_reduce(torch.ones(1)))
    assert found.in_collective, "raised inside torch.distributed"


def test_cuda_error_codes_are_kept():
    error = RuntimeError("an illegal memory access was encountered")
    error.error_code = 700
    assert exception_evidence(error).cuda_error == 700
    assert exception_evidence(RuntimeError("700")).cuda_error is None


def test_an_exception_that_was_never_raised_has_no_place():
    found = exception_evidence(ValueError("x"))
    assert (found.origin, found.declined, found.in_collective) == ("harness", False, False)
    assert sys.exc_info() == (None, None, None)
