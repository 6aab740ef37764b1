"""What the command line changes in every scenario of a run: modelled release and overlays.

Made for holding two runs of the same scenarios against each other. Ids stay, so that the pairs are
found; the content hash changes, so that nobody takes one for the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, cast

from harness.scenario.names import CUDNN_FRONTEND_RELEASES, CUDNN_OVERLAYS, OVERLAYS
from harness.scenario.spec import ModelledKernels, Scenario

Arch = Literal["sm90", "sm100"]
_ARCHS = ("sm90", "sm100")


class OverrideError(ValueError):
    """An override names what there is not; the message lists what there is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """What to change.

    Attributes:
        release: Modelled release of every scenario with modelled cuDNN kernels, None for its own.
        arch: Architecture with it, None for its own.
        overlays: Overlays added to those of each scenario.
    """

    release: str | None = None
    arch: Arch | None = None
    overlays: tuple[str, ...] = ()

    def apply(self, scenario: Scenario) -> Scenario:
        """Return the scenario as it shall run."""
        if scenario.level == "kernel" and self.overlays:
            # Nothing of Megatron runs there that an overlay could correct.
            return replace(self, overlays=()).apply(scenario)
        cudnn = scenario.kernels.dsa_kernel_backend == "cudnn"
        wanted = (name for name in self.overlays if cudnn or name not in CUDNN_OVERLAYS)
        overlays = (*scenario.overlays, *(o for o in wanted if o not in scenario.overlays))
        if not cudnn:
            return replace(scenario, overlays=overlays)
        kernels = replace(scenario.kernels, modelled=self._modelled(scenario.kernels.modelled))
        return replace(scenario, overlays=overlays, kernels=kernels)

    def _modelled(self, modelled: ModelledKernels) -> ModelledKernels:
        return replace(
            modelled,
            cudnn_frontend=self.release or modelled.cudnn_frontend,
            arch=self.arch or modelled.arch,
        )


def parse_overrides(modelled: str | None, overlays: Iterable[str]) -> Overrides:
    """Read ``RELEASE[@ARCH]`` and overlay names.

    Raises:
        OverrideError: for a release, architecture or overlay that there is not.
    """
    release, _, arch = (modelled or "").partition("@")
    if release and release not in CUDNN_FRONTEND_RELEASES:
        raise OverrideError(
            f"--modelled {modelled}: expected a release with a model "
            f"({', '.join(CUDNN_FRONTEND_RELEASES)}), found {release!r}"
        )
    if arch and arch not in _ARCHS:
        raise OverrideError(
            f"--modelled {modelled}: expected {' or '.join(_ARCHS)} behind the @, found {arch!r}"
        )
    names = tuple(dict.fromkeys(overlays))
    for name in names:
        if name not in OVERLAYS:
            raise OverrideError(
                f"--overlay {name}: expected one of {', '.join(OVERLAYS)}, found {name!r}"
            )
    return Overrides(
        release=release or None, arch=cast("Arch | None", arch or None), overlays=names
    )
