"""All cases of a release on an architecture, in the order in which they are run."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from harness.kernels.certify.case import KernelCase
from harness.kernels.certify.forward_cases import forward_cases
from harness.kernels.certify.top_k_cases import top_k_cases
from harness.kernels.certify.training_cases import flash_mla_cases, training_cases
from harness.kernels.releases import Arch, release_table


def kernel_cases(
    cudnn_frontend: str, arch: Arch, *, only: Sequence[str] = ()
) -> tuple[KernelCase, ...]:
    """Return the cases of one release on one architecture.

    Contract cases come first: what is known to hang or fault may leave a device unclean.

    Args:
        cudnn_frontend: Release with a table of rules.
        arch: ``sm90`` or ``sm100``.
        only: Shell patterns of names; empty for all.

    Raises:
        ValueError: for a release that is not modelled.
    """
    release = release_table(cudnn_frontend)
    found = [
        *forward_cases(release, arch),
        *top_k_cases(release, arch),
        *training_cases(release, arch),
        *flash_mla_cases(),
    ]
    order = {"contract": 0, "read": 1, "reported": 1, "deduced": 2}
    found.sort(key=lambda case: order[case.basis])
    return tuple(
        case
        for case in found
        if not only or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in only)
    )
