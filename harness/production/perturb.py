"""Breaks one fact of the production call: what goes into the dispatcher, or what comes back.

The call itself is Megatron's own, reached the way production reaches it; only one property of one
of its tensors is not what the layer handed over. A build that checks its callers refuses before a
kernel is called. One that does not is judged by what comes out.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.kernels.other_device import on_other_device
from harness.production.recorder import HookCall, Recorder
from harness.record.perturb import PerturbEvidence
from harness.record.phase import Phase
from harness.reference.site import Site
from harness.scenario.spec import PerturbSpec

_QUERIES = ("q", "q_indexer")
_KEYS = ("k", "k_indexer")
_WEIGHTS = ("weights", "indexer_weights")
_STARTS = ("starts", "varlen_starts")
_ENDS = ("ends", "varlen_ends")
"""Names that the dispatcher's hooks give the same operand."""

DISPATCHERS = ("dispatch_attention", "dispatch_topk", "dispatch_topk_loss")
"""Hooks whose arguments are changed: all entries of the dispatcher that score."""
BACKWARD = "fused_backward"
"""Hook whose result is changed: the fused function's own backward."""

_CALLER = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
_FUNCTION = "FusedIndexerSparseAttnFunc"

Change = Callable[[torch.Tensor], tuple[Any, str]]
"""Takes an operand; returns what is handed over in its place, and the difference in words."""


def _device(tensor: torch.Tensor) -> tuple[Any, str]:
    if torch.cuda.is_available():
        return tensor.cpu(), f"device {tensor.device} became cpu"
    return on_other_device(tensor), "device of its peers became cuda:1"


def _dtype(tensor: torch.Tensor) -> tuple[Any, str]:
    changed = tensor.float() if tensor.dtype != torch.float32 else tensor.bfloat16()
    return changed, f"dtype {_plain(tensor.dtype)} became {_plain(changed.dtype)}"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _view(tensor: torch.Tensor) -> tuple[Any, str]:
    # A twin beside each element keeps the values and doubles every stride.
    changed = torch.stack((tensor, tensor), dim=-1).select(-1, 0)
    return changed, f"strides {tuple(tensor.stride())} became {tuple(changed.stride())}"


def _half_heads(tensor: torch.Tensor) -> tuple[Any, str]:
    heads = tensor.size(2)
    return tensor[:, :, : heads // 2], f"{heads} heads became {heads // 2}"


def _missing(_tensor: torch.Tensor) -> tuple[Any, str]:
    return None, "a tensor became None"


CHANGES: dict[str, tuple[tuple[str, ...], Change]] = {
    "device": (_KEYS, _device),
    "dtype": (_KEYS, _dtype),
    "view": (_QUERIES, _view),
    "tp_slice": (_QUERIES + _WEIGHTS, _half_heads),
    "missing_starts": (_STARTS, _missing),
    "missing_ends": (_ENDS, _missing),
}
"""Perturbation to the operands it changes, and how."""


@dataclass(slots=True)
class _Strike:
    """One call that was changed.

    Attributes:
        first: Number of calls that the recorder held before it.
    """

    call: str
    layer: int
    first: int
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Perturbation:
    """Carries out a scenario's ``perturb`` on one rank, and says what it did.

    Attributes:
        spec: What is broken, and on which ranks.
        site: Where evidence belongs; the layer is filled in per call.
    """

    spec: PerturbSpec = field(default_factory=PerturbSpec)
    site: Site | None = None
    _strikes: list[_Strike] = field(default_factory=list)

    def aim(self, recorder: Recorder, site: Site) -> None:
        """Arrange for the coming case to be changed, if this rank's is."""
        self._strikes.clear()
        self.site = site
        fact, ranks = self.spec.fact, self.spec.ranks
        struck = fact is not None and (ranks == "all" or site.cp_rank in ranks)
        for symbol in DISPATCHERS:
            recorder.dressers.pop(symbol, None)
        recorder.transforms.pop(BACKWARD, None)
        if not struck or fact is None:
            return
        if fact == "gradient_arity":
            recorder.transforms[BACKWARD] = self._shortened(recorder)
            return
        names, change = CHANGES[fact]
        for symbol in DISPATCHERS:
            recorder.dressers[symbol] = self._dresser(recorder, symbol, names, change)

    @contextlib.contextmanager
    def installed(self, recorder: Recorder) -> Iterator[None]:
        """Observe the fused function's backward where its result is to be changed."""
        if self.spec.fact != "gradient_arity":
            yield
            return
        function: Any = getattr(importlib.import_module(_CALLER), _FUNCTION)
        original = function.backward

        def backward(ctx: Any, *gradients: Any) -> Any:
            inputs = {"inputs": len(ctx.needs_input_grad)}
            return recorder.record(
                BACKWARD, "megatron", Phase.BACKWARD, inputs, lambda: original(ctx, *gradients)
            )

        function.backward = staticmethod(backward)
        try:
            yield
        finally:
            function.backward = staticmethod(original)

    def _dresser(
        self, recorder: Recorder, symbol: str, names: tuple[str, ...], change: Change
    ) -> Callable[[str, Any], Any]:
        def dress(name: str, value: Any) -> Any:
            if name not in names or not isinstance(value, torch.Tensor):
                return value
            changed, text = change(value)
            self._strike(recorder, symbol).arguments[name] = text
            return changed

        return dress

    def _shortened(self, recorder: Recorder) -> Callable[[HookCall, Any], Any]:
        def shorten(call: HookCall, result: Any) -> Any:
            # Kernels of the forward count as called: the build let the function be built.
            strike = _Strike(call=BACKWARD, layer=call.layer, first=0)
            # Counted from the inputs: torch lets a build return more, if the rest is None.
            inputs = call.arguments["inputs"]
            strike.arguments[""] = f"{len(result)} gradients of {inputs} inputs became {inputs - 1}"
            self._strikes.append(strike)
            return result[: inputs - 1]

        return shorten

    def _strike(self, recorder: Recorder, symbol: str) -> _Strike:
        """The strike on the call that is about to be made: all its operands come in one go."""
        first = len(recorder.calls)
        last = self._strikes[-1] if self._strikes else None
        if last is None or (last.call, last.first) != (symbol, first):
            last = _Strike(call=symbol, layer=recorder.layer, first=first)
            self._strikes.append(last)
        return last

    def evidence(self, recorder: Recorder) -> Iterator[PerturbEvidence]:
        """Yield what was done since the last time, whether or not the call came back."""
        assert self.site is not None or not self._strikes, "a case was aimed at before it ran"
        for strike in self._strikes:
            assert self.site is not None
            after = recorder.calls[strike.first :]
            kernels = [call.symbol for call in after if call.origin != "megatron"]
            own = next((call for call in after if call.symbol == strike.call), None)
            yield PerturbEvidence(
                global_rank=self.site.global_rank,
                cp_rank=self.site.cp_rank,
                microbatch=self.site.microbatch,
                layer=strike.layer,
                seed=self.site.seed,
                fact=str(self.spec.fact),
                call=strike.call,
                arguments=tuple(name for name in strike.arguments if name),
                change="; ".join(dict.fromkeys(strike.arguments.values())),
                kernels=tuple(dict.fromkeys(kernels)),
                declined=own is not None and own.returned and own.result is None,
            )
        self._strikes.clear()
