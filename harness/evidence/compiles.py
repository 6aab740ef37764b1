"""Keys under which kernels of a forward are compiled, and which of them are new to the process.

Models compile nothing: counted are the distinct keys that the wrappers would look a kernel up by.
The top-k wrapper's key is known (element type, next power of two of the columns, whether there are
more than 148 rows, ``top_k`` and its flags); the other wrappers are counted by shapes and flags,
which recompiles never are more than
(https://github.com/NVIDIA/cudnn-frontend/issues/1188).
"""

from __future__ import annotations

import torch

from harness.production.recorder import HookCall, Recorder

_LARGE_OCCUPANCY_ROWS = 148


def compile_key(call: HookCall) -> str:
    """Key of one kernel call as text."""
    arguments = call.arguments
    flags = sorted(
        f"{name}={value}"
        for name, value in arguments.items()
        if isinstance(value, (bool, int, str)) and name != "stream"
    )
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    if call.symbol == "indexer_top_k" and tensors and tensors[0].dim() == 2:
        rows, columns = tensors[0].shape
        bucket = 1 << max(columns - 1, 0).bit_length()
        shape = [_name(tensors[0]), f"bucket={bucket}", f"large={rows > _LARGE_OCCUPANCY_ROWS}"]
        return " ".join([*shape, *flags])
    shapes = [f"{_name(tensor)}{list(tensor.shape)}" for tensor in tensors]
    return " ".join([*shapes, *flags])


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def compiles(recorder: Recorder, layer: int) -> tuple[dict[str, int], dict[str, int]]:
    """Count compile keys of one layer's kernel calls.

    Returns:
        (kernel to its distinct keys, kernel to those that the process had not compiled before).
        The new ones count as compiled from now on.
    """
    keys: dict[str, set[str]] = {}
    for call in recorder.calls:
        if call.layer == layer and call.origin != "megatron":
            keys.setdefault(call.symbol, set()).add(compile_key(call))
    fresh: dict[str, int] = {}
    for kernel, found in keys.items():
        known = recorder.compiled.setdefault(kernel, set())
        fresh[kernel] = len(found - known)
        known |= found
    return {kernel: len(found) for kernel, found in keys.items()}, fresh
