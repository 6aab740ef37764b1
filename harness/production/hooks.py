"""The declared hook table: every Megatron symbol the harness observes, in one place.

A hook that is gone is an error that names symbol and version, never a silent loss of evidence.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.production.recorder import Recorder
from harness.record.phase import Phase

_VARIANT = "megatron.core.transformer.experimental_attention_variant"


class MissingHookError(RuntimeError):
    """The build lacks a symbol of the hook table, so its path cannot be proved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hook:
    """One hooked symbol.

    Attributes:
        symbol: Short name used in records.
        module: Module whose global is replaced (the name as the caller looks it up).
        attribute: Attribute of the module, ``Class.method`` for a method.
        phase: Phase that begins when the symbol is entered.
        checked: Builds this entry was checked against.
        optional: True for symbols that builds may lack without losing the path evidence.
        needs: Probed fact of builds that must have the symbol; others may have it.
        everywhere: Replace it in every module of the variant that imported it by name, too.
    """

    symbol: str
    module: str
    attribute: str
    phase: Phase | None = None
    checked: str = "0.19.2"
    optional: bool = False
    needs: str | None = None
    everywhere: bool = False

    def required(self, facts: Mapping[str, object]) -> bool:
        """Whether a build with these facts must have the symbol."""
        if self.needs is not None:
            return bool(facts.get(self.needs))
        return not self.optional


_PR_6206 = "pull request 6206 at 2b3e3b70"


def _dsa(symbol: str, attribute: str, phase: Phase | None = None, **more: Any) -> Hook:
    return Hook(symbol=symbol, module=f"{_VARIANT}.dsa", attribute=attribute, phase=phase, **more)


def _in(module: str, symbol: str, attribute: str, phase: Phase | None = None, **more: Any) -> Hook:
    name = f"{_VARIANT}.{module}"
    return Hook(symbol=symbol, module=name, attribute=attribute, phase=phase, **more)


HOOKS: tuple[Hook, ...] = (
    _dsa("attention", "DSAttention.forward", Phase.LAYOUT),
    _dsa("indexer", "DSAIndexer.forward_before_topk"),
    _dsa(
        "rotary",
        "apply_rotary_pos_emb",
        # The indexer's, and that of the projections around attention.
        everywhere=True,
        checked="0.19.2, dev, pull request 6206",
    ),
    _dsa("gather", "gather_from_sequence_parallel_region", Phase.GATHER),
    _in(
        "dsa_layout",
        "layout_tables",
        "build_packed_allgather_cp_query_positions_and_key_reorder",
        Phase.LAYOUT,
    ),
    _in(
        "dsa_layout",
        "layout_tables_host",
        "build_packed_allgather_cp_query_positions_and_key_reorder_from_host",
        Phase.LAYOUT,
        needs="has_host_layout",
        checked="none: the text of pull request 6206 as merged",
    ),
    _in(
        "dsa_layout",
        "local_positions",
        "build_packed_allgather_cp_local_positions",
        Phase.LAYOUT,
        checked="0.19.2, dev at d48bd6be, pull request 6206 at 2b3e3b70",
    ),
    _in(
        "dsa_layout",
        "local_positions_host",
        "build_packed_allgather_cp_local_positions_from_host",
        Phase.LAYOUT,
        optional=True,
        checked="none: the text of pull request 6206 as merged",
    ),
    Hook(
        symbol="prebuild",
        module="megatron.core.context_parallel_layout.routes",
        attribute="prebuild_thd_cp_partition_routes",
        optional=True,
        checked="dev at d48bd6be",
    ),
    _in(
        "dsa_layout",
        "segment_tables",
        "build_packed_cp_indexer_layout",
        optional=True,
        everywhere=True,
    ),
    _dsa(
        "memo",
        "DSAttention._memoized",
        Phase.LAYOUT,
        needs="has_layout_memo",
        checked=_PR_6206,
    ),
    _in("dsa_layout", "zigzag_reorder", "build_zigzag_allgather_cp_key_reorder", Phase.LAYOUT),
    _in("dsa_masking", "bounds", "build_dsattention_forward_mask", Phase.LAYOUT),
    _in("dsa_kernels", "use_fused", "use_fused_dsa_kernels"),
    _in("dsa_kernels", "dispatch_attention", "run_fused_dsa_attention"),
    _in("dsa_kernels", "dispatch_topk", "run_fused_qk_topk"),
    _in("dsa_kernels", "dispatch_topk_loss", "run_fused_qk_topk_with_loss"),
    _in("dsa_kernels", "dispatch_sparse_attention", "run_fused_absorbed_sparse_attention"),
    _in(
        "dsa_scoring_plan",
        "plan",
        "resolve_indexer_scoring_plan",
        needs="has_scoring_plan",
        everywhere=True,
        checked=_PR_6206,
    ),
    _in("dsa_cudnn_kernels", "fused_topk", "_indexer_topk_bshd", Phase.SCORE),
    _in("dsa_cudnn_kernels", "scorer_single", "_indexer_topk_single_packed_cp_segments"),
    _in("dsa_cudnn_kernels", "scorer_thd", "_indexer_topk_multi_packed_cp_thd"),
    _in("dsa_cudnn_kernels", "scorer_chunks", "_indexer_topk_from_score_chunks"),
    _in(
        "dsa_cudnn_kernels",
        "scorer_global_rows",
        "_compute_indexer_scores_chunk_with_global_rows",
    ),
    _in("dsa_cudnn_kernels", "flash_attention", "_dsa_fwd_flash_mla", Phase.ATTEND),
    _dsa("naive_topk", "fused_qk_topk_naive", Phase.SCORE),
    _dsa("naive_topk_loss", "fwd_fused_indexer_loss_naive", Phase.SCORE),
    _dsa("sparse_attention", "_run_sparse_attention", optional=True),
    _dsa("unfused_attention", "_unfused_absorbed_dsa_fn", Phase.ATTEND),
)
"""Order is for the reader; the names as records use them."""

KERNEL_PHASES = {
    "indexer_forward": Phase.SCORE,
    "indexer_top_k": Phase.SELECT,
    "indexer_forward_top_k": Phase.SCORE,
    "flash_mla_sparse_fwd": Phase.ATTEND,
    "sparse_attention_backward": Phase.BACKWARD,
    "indexer_backward": Phase.BACKWARD,
    "dense_indexer_backward": Phase.BACKWARD,
}
"""Phase that begins with a kernel wrapper's call."""


@contextlib.contextmanager
def installed(
    recorder: Recorder, version: str, facts: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Replace every symbol of the table by one that reports to ``recorder``, and put it back.

    Args:
        recorder: Receives the calls, and the names of hooks that the build may and does lack.
        version: Version of the build, for the error text.
        facts: Probed facts, which say what this build must have.

    Raises:
        MissingHookError: when the build lacks a symbol that it must have.
    """
    absent = []
    with contextlib.ExitStack() as stack:
        for hook in HOOKS:
            found = _find(hook, version, facts or {})
            if found is None:
                absent.append(hook.symbol)
            else:
                stack.enter_context(_replaced(hook, found, recorder))
        recorder.absent = tuple(absent)
        yield


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """Where a symbol was found; ``raw`` is what the owner holds, such as a staticmethod."""

    owner: Any
    name: str
    raw: Any
    function: Callable[..., Any]


@contextlib.contextmanager
def _replaced(hook: Hook, found: _Found, recorder: Recorder) -> Iterator[None]:
    observed: Any = _observed(hook, found.function, recorder)
    if isinstance(found.raw, staticmethod):
        observed = staticmethod(observed)
    owners = [found.owner]
    if hook.everywhere:
        owners += _importers(found)
    for owner in owners:
        setattr(owner, found.name, observed)
    try:
        yield
    finally:
        for owner in owners:
            setattr(owner, found.name, found.raw)


def _importers(found: _Found) -> list[Any]:
    """Loaded modules of the variant that hold the same function under the same name."""
    # By way of the package: to walk through all loaded modules would copy, in a forked rank, most
    # pages of what the forkserver imported.
    parts = vars(sys.modules[_VARIANT]).values()
    return [
        part
        for part in parts
        if isinstance(part, types.ModuleType)
        and part is not found.owner
        and vars(part).get(found.name) is found.function
    ]


def _find(hook: Hook, version: str, facts: Mapping[str, object]) -> _Found | None:
    try:
        owner: Any = importlib.import_module(hook.module)
        *classes, name = hook.attribute.split(".")
        for part in classes:
            owner = getattr(owner, part)
        raw = inspect.getattr_static(owner, name)
        return _Found(owner=owner, name=name, raw=raw, function=getattr(owner, name))
    except (ImportError, AttributeError) as error:
        if not hook.required(facts):
            return None
        raise MissingHookError(
            f"megatron-core {version} has no {hook.module}.{hook.attribute} (hook "
            f"{hook.symbol!r}, checked against {hook.checked}); the hook table in "
            "harness/production/hooks.py must learn this build before its path can be proved"
        ) from error


def _observed(hook: Hook, original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:
            # The original will refuse the call itself, in its own words.
            arguments = dict(kwargs)
        if hook.symbol == "attention":
            recorder.layer = int(args[0].layer_number)
        dresser = recorder.dressers.get(hook.symbol)
        if dresser is not None:
            bound = signature.bind(*args, **kwargs)
            arguments = {name: dresser(name, value) for name, value in bound.arguments.items()}
            bound.arguments.update(arguments)
            args, kwargs = bound.args, bound.kwargs
        return recorder.record(
            hook.symbol,
            "megatron",
            hook.phase,
            arguments,
            lambda: original(*args, **kwargs),
            caller=sys._getframe(1).f_code.co_qualname,
            function=original,
        )

    return observed


class ObservedNamespace:
    """Stands before ``cudnn.DSA`` (real or modelled) and reports every wrapper call.

    Attribute access is passed through, so that an unknown name fails as the namespace fails.
    """

    def __init__(self, namespace: Any, origin: str, recorder: Recorder) -> None:
        self._namespace = namespace
        self._origin = origin
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        """Return the wrapper of that name, observed."""
        target = getattr(self._namespace, name)
        if not callable(target) or not name.endswith("_wrapper"):
            return target
        return observed_kernel(target, name.removesuffix("_wrapper"), self._origin, self._recorder)


def observed_kernel(
    kernel: Callable[..., Any], symbol: str, origin: str, recorder: Recorder
) -> Callable[..., Any]:
    """Return ``kernel`` wrapped so that its calls are recorded under ``symbol``."""
    try:
        signature = inspect.signature(kernel)
    except (TypeError, ValueError):
        signature = None

    @functools.wraps(kernel)
    def observed(*args: Any, **kwargs: Any) -> Any:
        arguments: dict[str, Any] = dict(kwargs)
        if signature is not None:
            with contextlib.suppress(TypeError):
                arguments = dict(signature.bind(*args, **kwargs).arguments)
        phase = KERNEL_PHASES.get(symbol)
        return recorder.record(symbol, origin, phase, arguments, lambda: kernel(*args, **kwargs))

    return observed
