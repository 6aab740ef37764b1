"""Handing gradients and scores back: in the caller's buffers where given, else freshly wrapped."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from harness.kernels.context import KernelContext
from harness.kernels.tuple_dict import TupleDict


def deliver(
    context: KernelContext,
    like: torch.Tensor,
    made: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor | None],
    dtypes: Mapping[str, torch.dtype],
) -> TupleDict:
    """Return results by name; a caller's buffer keeps its identity.

    Args:
        context: Tensor types of the caller.
        like: Argument whose type fresh results take.
        made: Results in fp32.
        given: Caller's buffers, None where it gave none.
        dtypes: Dtype of fresh results.
    """
    results: dict[str, torch.Tensor] = {}
    for name, values in made.items():
        target = given.get(name)
        if target is None:
            results[name] = context.hook.wrap_like(values.to(dtypes[name]), like)
        else:
            context.hook.unwrap(target).copy_(values)
            results[name] = target
    return TupleDict(**results)
