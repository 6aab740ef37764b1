"""Wraps Megatron's DSA attention by name, as soon as the job imports it.

No module is imported here that the job does not import. Where a name is missing the recorder has
less to tell, and nothing else changes.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .recorder import Call, Recorder

VARIANT = "megatron.core.transformer.experimental_attention_variant"
_MARK = "__dsa_capture__"


class Session:
    """The recorder of this process, made when it is first needed.

    After an error of its own the recorder is given up and the job goes on.
    """

    def __init__(self, make: Callable[[], Recorder]) -> None:
        self._make = make
        self._recorder: Recorder | None = None
        self._broken = False

    def recorder(self) -> Recorder | None:
        """Return the recorder; a forked process gets one of its own."""
        if self._broken or torch.compiler.is_compiling():
            return None
        if self._recorder is None or self._recorder.pid != os.getpid():
            made = self.safely(self._make)
            self._recorder = made if isinstance(made, Recorder) else None
        return self._recorder

    def safely(self, act: Callable[[], Any]) -> Any:
        """Run a part of the recorder; None when it failed."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 (a job must run without its recorder)
            self._broken = True
            print(f"dsa_capture: given up: {error!r}", file=sys.stderr)  # noqa: T201
            return None


def watch(make: Callable[[], Recorder]) -> Session:
    """Wrap what is imported already, and the rest when it is; a second call changes nothing.

    Returns:
        The session that is at work, an earlier one where there is one.
    """
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) or hasattr(finder, _MARK):
            found: Session = finder.session  # type: ignore[attr-defined]
            return found
    session = Session(make)
    sys.meta_path.insert(0, _Finder(session))
    for name in _PATCHES:
        module = sys.modules.get(name)
        if module is not None:
            _patch(module, session)
    return session


def unwatch() -> None:
    """Take every wrapper off again; for tests."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, _MARK)]
    for name in _PATCHES:
        module = sys.modules.get(name)
        for owner in () if module is None else (module, *_classes(module)):
            for attribute, value in list(vars(owner).items()):
                if hasattr(value, _MARK):
                    setattr(owner, attribute, value.__wrapped__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules as all others do, and has them wrapped when they have been executed."""

    __dsa_capture__ = True

    def __init__(self, session: Session) -> None:
        self.session = session
        self._busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        if fullname not in _PATCHES or self._busy:
            return None
        self._busy = True
        try:
            spec = _spec(self, fullname, path, target)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.session)
        return spec


def _spec(
    own: _Finder, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is own:
            continue
        spec = finder.find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, session: Session) -> None:
        self._inner = inner
        self._session = session

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """See ``importlib.abc.Loader``."""
        made: types.ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute with the loader that everybody expects to find on the module, then wrap."""
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _patch(module, self._session)


def _patch(module: types.ModuleType, session: Session) -> None:
    for path, wrap in _PATCHES[module.__name__].items():
        *classes, name = path.split(".")
        owner: Any = module
        for part in classes:
            owner = getattr(owner, part, None)
        original = None if owner is None else vars(owner).get(name)
        if callable(original) and not hasattr(original, _MARK):
            wrapped = wrap(original, session)
            setattr(wrapped, _MARK, True)
            setattr(owner, name, wrapped)


def _classes(module: types.ModuleType) -> list[type]:
    return [value for value in vars(module).values() if isinstance(value, type)]


def _attention(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap ``DSAttention.forward``: the last moment before layouts, gathers and scorer."""
    names = tuple(inspect.signature(original).parameters)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = session.recorder()
        if recorder is None:
            return original(self, *args, **kwargs)
        given = {**dict(zip(names[1:], args, strict=False)), **kwargs}
        call: Call | None = session.safely(lambda: recorder.enter(self, given))
        if call is None:
            return original(self, *args, **kwargs)
        try:
            output = original(self, *args, **kwargs)
        except BaseException as error:
            failure = error
            session.safely(lambda: recorder.failed(call, failure))
            raise
        session.safely(lambda: recorder.leave(call, output))
        return output

    return forward


def _naive_scores(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    @functools.wraps(original)
    def scorer(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        recorder = session.recorder()
        if recorder is not None:
            session.safely(lambda: recorder.scores(result[0], kernel=original.__name__))
        return result

    return scorer


def _fused_scores(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap the caller of the top-k kernel, which is given the scores."""

    @functools.wraps(original)
    def top_k(scores_flat: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        recorder = session.recorder()
        if recorder is not None:
            session.safely(lambda: recorder.scores(scores_flat, kernel="indexer_top_k"))
        return original(scores_flat, *args, **kwargs)

    return top_k


def _indexer(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap the indexer: what it returns goes into the scorer, the keys still local to the rank."""

    @functools.wraps(original)
    def forward_before_topk(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        recorder = session.recorder()
        if recorder is not None and recorder.settings.tensor_bytes:
            named = dict(zip(("q", "k", "weights"), result, strict=False))
            session.safely(lambda: recorder.tensors(named))
        return result

    return forward_before_topk


_Wrap = Callable[[Callable[..., Any], Session], Callable[..., Any]]

_PATCHES: dict[str, dict[str, _Wrap]] = {
    f"{VARIANT}.dsa": {
        "DSAttention.forward": _attention,
        "DSAIndexer.forward_before_topk": _indexer,
        "fused_qk_topk_naive": _naive_scores,
    },
    f"{VARIANT}.dsa_cudnn_kernels": {"_indexer_top_k_wrapper_chunked": _fused_scores},
}
"""Names of megatron-core 0.19.2, the development branch at d48bd6be and pull request 6206."""
