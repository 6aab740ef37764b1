"""Who builds the linear layers: Transformer Engine where it is installed, a local one elsewhere."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from harness.production.errors import CapabilityMissingError


class DuplicatedLinear(torch.nn.Linear):
    """A linear layer held whole by every rank, with the return shape of Megatron's own.

    Megatron's local provider has no plain linear (it builds these with Transformer Engine), and
    the indexer's projections ask for ``parallel_mode="duplicated"``.
    """

    def __init__(self, input_size: int, output_size: int, **kwargs: Any) -> None:
        """Build with Megatron's keyword arguments; only config, init_method and bias matter here.

        Raises:
            ValueError: for another parallel mode than ``duplicated`` or None.
        """
        if kwargs.get("parallel_mode") not in (None, "duplicated"):
            raise ValueError(
                f"parallel_mode {kwargs['parallel_mode']!r} is not supported by the local "
                "provider; expected 'duplicated'"
            )
        config = kwargs["config"]
        super().__init__(
            input_size, output_size, bias=bool(kwargs.get("bias")), dtype=config.params_dtype
        )
        kwargs["init_method"](self.weight)
        for parameter in self.parameters():
            # As Transformer Engine marks it: between layers a rank sees its share of the rows.
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return (output, None): no bias is left to be added later."""
        return super().forward(input), None


class LocalNorm:
    """Megatron's wrapped torch norm, under sequence parallelism too.

    Megatron's wrapper refuses sequence parallelism, because nothing tells its gradient reduction
    that each tensor-parallel rank saw a share of the rows. This one marks its parameters, as the
    norms of Transformer Engine do; the gradient of a rank is the part of its own rows.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
        """Build the norm that the configuration names."""
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = WrappedTorchNorm(config=plain, hidden_size=hidden_size, eps=eps, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class LocalProvider(LocalSpecProvider):
    """Megatron's local provider plus the linear layer it lacks."""

    def layer_norm(
        self, rms_norm: bool = False, for_qk: bool = False, has_residual: bool = False
    ) -> type:
        """Which norm: torch's, as the configuration names it."""
        return LocalNorm

    def linear(self) -> type:
        """Which linear module duplicates its weight on every rank."""
        return DuplicatedLinear


def spec_provider(*, may_be_local: bool = True) -> tuple[Any, str]:
    """Return the provider to build layers with and its name, ``te`` or ``local``.

    Args:
        may_be_local: Whether the local one may stand in beside a usable GPU, where production
            would have Transformer Engine.

    Raises:
        CapabilityMissingError: Transformer Engine is missing and may not be stood in for.
    """
    if importlib.util.find_spec("transformer_engine") is not None:
        from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

        return TESpecProvider(), "te"
    if torch.cuda.is_available() and not may_be_local:
        raise CapabilityMissingError(
            "transformer_engine on a machine with a GPU (--allow-mixed lets Megatron's local "
            "layers stand in for it)"
        )
    return LocalProvider(), "local"
