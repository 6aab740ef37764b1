"""Overlay ``effective_group``: a microbatch is computed on its own context-parallel group.

Under Dynamic CP a microbatch runs on a part of the configured ranks, or on several of them; its
``PackedSeqParams`` name that group (``cp_group``) and its size (``local_cp_size``). megatron-core
0.19.2 refuses such a microbatch in its absorbed attention and reads the configured group
everywhere else. With this overlay queries, keys, rotary embedding, indexer and core attention take
the group of the microbatch, ``cp_comm_type`` reaches layers that were built without context
parallelism, and everything is put back when the call ends: after an exception too, and after every
replay of a recomputed forward, which enters the microbatch's group again
(https://github.com/NVIDIA/Megatron-LM/pull/6206).

In a training job, before the first step::

    from harness.overlays import effective_group
    undo = effective_group.install()

The data path has to set both fields. A size of 1 may come without a group. Microbatches without
either run as they did.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from harness.overlays.patching import VARIANT, Correction, Patches, argument_of, found
from harness.overlays.refusal import OverlayRefusedError

NAME = "effective_group"
_ABSORBED = f"{VARIANT}.absorbed_mla"
_DSA = f"{VARIANT}.dsa"
_PROJECTS = "get_query_key_value_tensors"


def install() -> Callable[[], None]:
    """Correct the loaded Megatron in this process.

    Returns:
        A function that takes the correction out again.

    Raises:
        OverlayRefusedError: when the build takes the group itself, or has other attention classes.
    """
    return OVERLAY.install()


def _install(patches: Patches) -> None:
    config: Any = found(NAME, "megatron.core.transformer.transformer_config", "TransformerConfig")
    fields = config.__dataclass_fields__
    OVERLAY.check({"has_dynamic_cp": "dynamic_context_parallel" in fields})
    params: Any = found(NAME, "megatron.core.packed_seq_params", "PackedSeqParams")
    lacking = {"local_cp_size", "cp_group"} - set(params.__dataclass_fields__)
    if lacking:
        raise OverlayRefusedError(
            f"overlay {NAME}: PackedSeqParams of this Megatron have no {', '.join(sorted(lacking))}"
            "; use a build whose data path can name the group of a microbatch"
        )
    found(NAME, _ABSORBED, f"AbsorbedMLASelfAttention.{_PROJECTS}", ("packed_seq_params",))
    found(NAME, _ABSORBED, "AbsorbedMLASelfAttention.forward", ("packed_seq_params",))
    found(NAME, _DSA, "DSAttention.forward", ("packed_seq_params",))
    absorbed: Any = importlib.import_module(_ABSORBED)
    dsa: Any = importlib.import_module(_DSA)
    layer, attention = absorbed.AbsorbedMLASelfAttention, dsa.DSAttention
    patches.put(layer, _PROJECTS, _on_group(getattr(layer, _PROJECTS), carried=False))
    patches.put(attention, "__init__", _with_comm_type(attention.__init__))
    patches.put(layer, "forward", _on_group(layer.forward, carried=True))
    patches.put(attention, "forward", _on_group(attention.forward, carried=True))
    patches.put(absorbed, "tensor_parallel", _ReplayedOnGroup(absorbed.tensor_parallel))


class Alone:
    """Stands for the group of a microbatch of size 1 that is given none; nothing is sent on it."""

    def size(self) -> int:
        """One rank."""
        return 1

    def rank(self) -> int:
        """The first."""
        return 0


_ALONE = Alone()


def group_of(params: Any) -> Any:
    """Return the group of a microbatch, None where it runs on the configured one.

    Args:
        params: ``PackedSeqParams``, or None for an unpacked batch.

    Raises:
        ValueError: a size above 1 without a group, or a group of another size.
    """
    if params is None:
        return None
    size, group = params.local_cp_size, params.cp_group
    if group is None:
        if size is None or size == 1:
            return None if size is None else _ALONE
        raise ValueError(
            f"local_cp_size {size} of a microbatch needs a cp_group of as many ranks, found none; "
            "have the data path set PackedSeqParams.cp_group"
        )
    if size is not None and group.size() != size:
        raise ValueError(
            f"expected a cp_group of local_cp_size {size} ranks, found one of {group.size()}; the "
            "data path stored it under another size"
        )
    return group


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """One attribute that stands for something else while a microbatch runs."""

    owner: Any
    name: str
    value: Any


@contextlib.contextmanager
def on_group(module: Any, group: Any) -> Iterator[None]:
    """Have a module compute on a group, and put back what it had, whatever happens meanwhile.

    Args:
        module: An absorbed attention layer, or core attention.
        group: Of ``group_of``; None leaves everything as it is.
    """
    if group is None:
        yield
        return
    held = [
        _Held(owner=owner, name=name, value=value) for owner, name, value in _due(module, group)
    ]
    before = [getattr(item.owner, item.name) for item in held]
    for item in held:
        setattr(item.owner, item.name, item.value)
    try:
        yield
    finally:
        for item, value in zip(held, before, strict=True):
            setattr(item.owner, item.name, value)


def _due(module: Any, group: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield (owner, attribute, value) of what a group changes about a module."""
    parts = [module, getattr(module, "indexer", None), getattr(module, "core_attention", None)]
    held = (getattr(part, "pg_collection", None) for part in parts)
    for collection in {id(one): one for one in held if one is not None}.values():
        yield collection, "cp", group
    # The rotary embedding of a layer cuts its table by what the configuration says.
    yield module.config, "context_parallel_size", group.size()
    for part in parts:
        if hasattr(part, "cp_comm_type") and group.size() > 1:
            yield part, "cp_comm_type", comm_type(part)


def comm_type(module: Any) -> str:
    """Return the communication type that the configuration gives a layer, as DSA spells it.

    A layer that was built at configured size 1 is given none. DSA gathers keys: without a setting
    that is what it does.
    """
    configured = module.config.cp_comm_type
    if isinstance(configured, (list, tuple)):
        configured = configured[module.layer_number - 1]
    return "allgather" if configured is None else configured.replace("_", "").lower()


def _with_comm_type(build: Callable[..., None]) -> Callable[..., None]:
    """Have a layer that is built at configured size 1 hold what the configuration says."""

    @functools.wraps(build)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        if self.config.context_parallel_size == 1 and self.config.cp_comm_type is not None:
            self.cp_comm_type = comm_type(self)

    return built


_CURRENT: ContextVar[tuple[Any, Any]] = ContextVar("module and group", default=(None, None))


def _on_group(method: Callable[..., Any], *, carried: bool) -> Callable[..., Any]:
    """Run a method on the group of its microbatch.

    Args:
        method: Method that takes ``packed_seq_params``.
        carried: Whether it may see the microbatch's size; the projections of 0.19.2 refuse it.
    """
    params_of = argument_of(method, "packed_seq_params")

    @functools.wraps(method)
    def on_own_group(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = params_of((self, *args), kwargs)
        group = group_of(params)
        if group is None:
            return method(self, *args, **kwargs)
        token = _CURRENT.set((self, group))
        try:
            with on_group(self, group), _size_hidden(params, hidden=not carried):
                return method(self, *args, **kwargs)
        finally:
            _CURRENT.reset(token)

    return on_own_group


@contextlib.contextmanager
def _size_hidden(params: Any, *, hidden: bool) -> Iterator[None]:
    size = params.local_cp_size
    if hidden:
        params.local_cp_size = None
    try:
        yield
    finally:
        params.local_cp_size = size


class _ReplayedOnGroup:
    """Stands for ``tensor_parallel`` in the absorbed layer: what it recomputes keeps its group."""

    def __init__(self, tensor_parallel: Any) -> None:
        self._tensor_parallel = tensor_parallel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor_parallel, name)

    def CheckpointWithoutOutput(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        """Return a checkpoint whose function runs on the group of its first run."""
        made = self._tensor_parallel.CheckpointWithoutOutput(*args, **kwargs)
        checkpoint = made.checkpoint

        def on_same_group(function: Callable[..., Any], *inputs: Any) -> Any:
            module, group = _CURRENT.get()

            @functools.wraps(function)
            def again(*values: Any) -> Any:
                with on_group(module, group):
                    return function(*values)

            return checkpoint(again, *inputs)

        made.checkpoint = on_same_group
        return made


OVERLAY = Correction(
    name=NAME,
    provides={"has_dynamic_cp": True},
    unless="has_dynamic_cp",
    does="has dynamic_context_parallel and takes the group of a microbatch itself",
    patch=_install,
)
"""The overlay as the harness's table holds it."""
