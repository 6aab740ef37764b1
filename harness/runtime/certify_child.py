"""One process that runs certificate cases until they are done, or until one of them ends it.

Run as ``python -m harness.runtime.certify_child FD``: the request comes as JSON on standard input,
events go out as JSON lines on the descriptor ``FD``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.record.codec import loads, to_jsonable
from harness.runtime.certify_request import CertifyRequest, DeviceFacts
from harness.runtime.death import die_with_parent

FAULTED = 70
"""Exit status behind a device fault: the context is lost, and the parent starts a new process."""


def main() -> int:
    """Run the request on standard input."""
    die_with_parent()
    descriptor = int(sys.argv[1])
    request = loads(CertifyRequest, sys.stdin.read())

    def say(**event: Any) -> None:
        os.write(descriptor, (json.dumps(to_jsonable(event)) + "\n").encode())

    return _run(request, say)


def _run(request: CertifyRequest, say: Callable[..., None]) -> int:
    import torch

    from harness.kernels.certify import kernel_cases
    from harness.kernels.certify.case import is_device_fault, run_case
    from harness.kernels.certify.stand_in import StandIn, modelled, standing_in

    on_device = request.stand_in is None
    device = "cuda" if on_device else "cpu"
    synchronize = torch.cuda.synchronize if on_device else _nothing
    kernels = _installed() if on_device else None
    torch.set_num_threads(1)
    say(event="ready", device=to_jsonable(_facts(request)))
    cases = {
        case.name: case
        for case in kernel_cases(request.cudnn_frontend, request.arch, only=request.only)
    }
    model = StandIn(cudnn_frontend=request.cudnn_frontend, arch=request.arch)
    for name in request.names or tuple(cases):
        case, began = cases[name], time.monotonic()
        say(event="begin", name=name)
        if request.stand_in is not None:
            kernels = standing_in(request.stand_in, name)
        try:
            found = run_case(
                case,
                modelled(model),
                kernels,
                device=device,
                synchronize=synchronize,
                expecting=lambda side: say(event="expecting", what=side.what, text=side.text),
            )
        except Exception as error:
            if not is_device_fault(error):
                raise
            say(event="fault", text=f"{type(error).__name__}: {error}"[:400])
            return FAULTED
        seconds = time.monotonic() - began
        say(event="case", case=dataclasses.replace(found, seconds=round(seconds, 3)))
    say(event="done")
    return 0


def _nothing() -> None:
    """Nothing runs behind the back of a model."""


def _installed() -> Any:
    """Return the real wrappers, and FlashMLA where it imports."""
    from cudnn import DSA

    from harness.kernels.certify.stand_in import Kernels

    try:
        from flash_mla import flash_mla_sparse_fwd
    except ImportError:
        flash_mla_sparse_fwd = None
    return Kernels(DSA, flash_mla_sparse_fwd)


def _facts(request: CertifyRequest) -> DeviceFacts:
    """Return what ran: the device, or the model in its place."""
    import torch

    from harness.kernels.detect import installed_facts, installed_kernels

    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    if request.stand_in is not None:
        return DeviceFacts(device="none", capability="", versions=versions)
    found, facts = installed_kernels(), installed_facts()
    versions["flash_mla"] = found.flash_mla or "absent"
    major, minor = torch.cuda.get_device_capability()
    return DeviceFacts(
        device=torch.cuda.get_device_name(),
        capability=f"{major}.{minor}",
        versions=versions,
        facts={
            "accepts_causal_offsets": facts.accepts_causal_offsets,
            "mask_alignment": facts.mask_alignment,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
