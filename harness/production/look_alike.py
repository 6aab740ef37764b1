"""Tensors that claim to be on a CUDA device while their data stays on the host.

They report ``device="cuda:0"`` whatever is asked of them, so that Megatron takes every branch it
takes on a GPU and each crossing between host and device can be seen. Forward only: the autograd
engine asks for a device context that such tensors cannot give.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from harness.kernels.wrapping import TensorHook
from harness.kernels.wrapping import unwrap as plain

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")


class LookAlike(torch.Tensor):
    """A tensor on ``DEVICE`` by name only; usable inside ``LookAlikeDevice`` alone.

    Attributes:
        held: The CPU tensor with the data.
    """

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> LookAlike:
        """Wrap a plain CPU tensor."""
        made: LookAlike = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
        )
        made.held = held
        return made

    def __init__(self, held: torch.Tensor) -> None:
        """Nothing left to do."""

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its graph, which it never has."""
        return self

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        # Megatron swaps the data under a tensor that it wants to be no view.
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.held = to_host(value)

    def tolist(self) -> Any:
        """Copy to the host and read; torch refuses subclasses here."""
        return self.to(HOST).tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"LookAlike({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Refuse: outside the mode nothing knows where the result belongs."""
        raise RuntimeError(f"{func} on a look-alike tensor outside LookAlikeDevice")


def to_device(value: Any) -> Any:
    """Wrap a plain tensor; anything else is returned as it is."""
    if not isinstance(value, torch.Tensor) or isinstance(value, LookAlike):
        return value
    return LookAlike(plain(value))


def to_host(value: Any) -> Any:
    """Unwrap a look-alike; anything else is returned as it is."""
    return value.held if isinstance(value, LookAlike) else value


def _wrap_like(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return LookAlike(plain(result)) if isinstance(like, LookAlike) else result


HOOK = TensorHook(
    unwrap=lambda tensor: plain(to_host(tensor)),
    wrap_like=_wrap_like,
)
"""How kernel models read look-alike inputs and hand back outputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operator call as the device would see it.

    Attributes:
        func: The operator overload.
        args: Positional arguments as given.
        kwargs: Keyword arguments as given.
        on_device: Whether an argument is a look-alike.
        to_device: Whether the result is asked to be on the device.
        to_host: Whether the result is asked to be on the host.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on_device: bool
    to_device: bool = False
    to_host: bool = False


Watcher = Callable[[Operation], None]


class LookAlikeDevice(TorchDispatchMode):
    """Runs operators on look-alikes on the host, and tells a watcher of each."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Unwrap the arguments, run, and wrap what belongs on the device."""
        given = dict(kwargs or {})
        wrapped: dict[int, LookAlike] = {}

        def unwrap(value: Any) -> Any:
            if isinstance(value, LookAlike):
                wrapped[id(value.held)] = value
                return value.held
            return value

        plain_args, plain_kwargs = tree_map(unwrap, args), tree_map(unwrap, given)
        device = _device_of(given)
        asks = device is not None and device.type == "cuda"
        if asks:
            plain_kwargs["device"] = HOST
            plain_kwargs.pop("pin_memory", None)
        operation = Operation(
            func=func,
            args=args,
            kwargs=given,
            on_device=bool(wrapped),
            to_device=asks,
            to_host=bool(wrapped) and device is not None and device.type == "cpu",
        )
        if operation.on_device or operation.to_device:
            self._watcher(operation)
        result = func(*plain_args, **plain_kwargs)
        if not (operation.on_device or operation.to_device) or operation.to_host:
            return result
        return tree_map(lambda value: _rewrap(value, wrapped), result)


def _device_of(kwargs: dict[str, Any]) -> torch.device | None:
    found = kwargs.get("device")
    return None if found is None else torch.device(found)


def _rewrap(value: Any, wrapped: dict[int, LookAlike]) -> Any:
    """Wrap a result; what an operator changed in place stays the tensor that it was."""
    if not isinstance(value, torch.Tensor) or isinstance(value, LookAlike):
        return value
    same = wrapped.get(id(value))
    return LookAlike(value) if same is None else same


@dataclass(slots=True)
class PinnedMemory:
    """Host tensors that were asked to be pinned, which a machine without a GPU cannot do.

    Attributes:
        kept: The tensors, held so that no other storage takes their place.
    """

    kept: list[torch.Tensor] = field(default_factory=list)

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor's storage as pinned."""
        self.kept.append(tensor)
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of a plain tensor counts as pinned."""
        pointer = tensor.untyped_storage().data_ptr()
        return any(pointer == kept.untyped_storage().data_ptr() for kept in self.kept)


@contextlib.contextmanager
def look_alike_device(watcher: Watcher, on_wait: Callable[[], None]) -> Iterator[PinnedMemory]:
    """Have ``cuda`` mean look-alike tensors, without gradients.

    Args:
        watcher: Told of every operator that touches the device.
        on_wait: Called instead of ``torch.cuda.synchronize``.

    Yields:
        What was pinned meanwhile.
    """
    pinned = PinnedMemory()
    torch._C._ensureCUDADeviceGuardSet()
    # So that torch.tensor(..., device="cuda") reaches the mode as a copy of a host tensor.
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, value in _stand_ins(pinned, on_wait):
                stack.enter_context(_replaced(owner, name, value))
            stack.enter_context(torch.no_grad())
            stack.enter_context(LookAlikeDevice(watcher))
            yield pinned
    finally:
        torch._C._set_only_lift_cpu_tensors(False)


def _stand_ins(
    pinned: PinnedMemory, on_wait: Callable[[], None]
) -> tuple[tuple[Any, str, Any], ...]:
    make = torch.tensor

    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = make(*args, **kwargs)
        return pinned.add(made) if pin_memory else made

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, **_more: Any
    ) -> torch.Tensor:
        return self.to(DEVICE, non_blocking=non_blocking)

    return (
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "current_device", lambda: DEVICE.index),
        (torch.cuda, "synchronize", lambda *_args: on_wait()),
        (torch, "tensor", tensor),
        (torch.Tensor, "cuda", cuda),
        (torch.Tensor, "pin_memory", lambda self, *_args: pinned.add(self.clone())),
        (torch.Tensor, "is_pinned", lambda self, *_args: pinned.holds(to_host(self))),
    )


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    missing = object()
    original = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if original is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


@contextlib.contextmanager
def module_on_device(module: torch.nn.Module | None) -> Iterator[None]:
    """Have a module's tensors claim to be on the device, and put the real ones back.

    Caches of its methods are emptied on both ways: they would hand tensors of one world to the
    other.
    """
    saved: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    modules = [] if module is None else list(module.modules())
    for part in modules:
        _forget(part)
        for holder in _holders(part):
            for name, value in list(holder.items()):
                if isinstance(value, torch.Tensor):
                    saved.append((holder, name, value))
                    holder[name] = to_device(value)
    try:
        yield
    finally:
        for part in modules:
            _forget(part)
            for holder in _holders(part):
                # What the forward itself left behind has to work without the mode.
                holder.update({name: to_host(value) for name, value in holder.items()})
        for holder, name, value in saved:
            holder[name] = value


def _holders(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """Parameters, buffers and plain attributes of one module."""
    return module._parameters, module._buffers, vars(module)


def _forget(module: torch.nn.Module) -> None:
    for value in vars(type(module)).values():
        clear = getattr(value, "cache_clear", None)
        if clear is not None:
            clear()
