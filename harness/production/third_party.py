"""Another party's backend hook before the backend's own, of any signature, to see what it is given.

The dispatcher offers a hook of an older release what that release knew, and no more. By the text of
Megatron-LM pull request 6206, on top of the released keywords:

- ``use_local_indexer_varlen`` and ``single_packed_thd_sequence`` are about context parallelism
  alone, as they were: False at CP 1;
- what holds whatever CP is comes as optional facts, to hooks that take them as keywords;
- a hook whose signature cannot be had gets none of them, but for ``varlen_is_plain_causal`` of the
  full hook, which was part of its keywords before.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.layout import Pack
from harness.record.hook_call import ALIVE, ELSEWHERE, REUSED, HookCallEvidence
from harness.reference.site import Site
from harness.scenario.call_spec import ThirdPartyHookSpec

_BACKEND = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
_FULL = "run_fused_dsa_attention"

CP_ONLY = ("use_local_indexer_varlen", "single_packed_thd_sequence")
PLAIN = "varlen_is_plain_causal"
OPTIONAL = (PLAIN, "packed_thd_causal_identity_layout", "packed_thd_single_sequence")
"""Facts that hold whatever CP is."""
FACTS = CP_ONLY + OPTIONAL

_LOCAL = ("local_packed_cp_rank", "local_packed_cp_query_start", "local_packed_cp_query_len")
_SCORED = ("q", "k", "weights", "index_topk", "starts", "ends", "block_size")
RELEASED: dict[str, tuple[str, ...]] = {
    "run_fused_qk_topk": (*_SCORED, "use_relu", *CP_ONLY, *_LOCAL, "packed_seq_params", "cp_size"),
    "run_fused_qk_topk_with_loss": (
        *("config", *_SCORED, "query", "key", "softmax_scale", "loss_coeff", "pg_collection"),
        *("query_valid_rows", "calculate_per_token_loss", "use_relu", *CP_ONLY, *_LOCAL),
        *("packed_seq_params", "cp_size"),
    ),
    _FULL: (
        *("config", "query", "key", "value", "up_v_weight", "q_indexer", "k_indexer"),
        *("indexer_weights", "indexer_topk", "softmax_scale", "loss_coeff", "sparse_loss"),
        *("calculate_per_token_loss", "absorbed_mla", "cp_size", "attn_mask_type"),
        *("packed_seq_params", "varlen_starts", "varlen_ends", "key_positions"),
        *("query_valid_rows", PLAIN, "use_relu", *CP_ONLY, *_LOCAL, "pg_collection"),
    ),
}
"""Keywords of the hooks of megatron-core 0.19.2, with which a third party was written."""

_TRIES = 1 << 18
"""New callables made to find one that has the id of the dead one: as many as fill the gaps that
the allocator may have elsewhere. Mostly the first one has it."""

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class OutsideHook:
    """A callable of another party: it takes whatever it is given, and says what it would take."""

    __slots__ = ("__weakref__", "_signature", "call")

    def __init__(self, signature: inspect.Signature | None, call: Call) -> None:
        self._signature = signature
        self.call = call

    @property
    def __signature__(self) -> inspect.Signature:
        """What ``inspect.signature`` finds.

        Raises:
            ValueError: as for builtins, where there is none to be had.
        """
        if self._signature is None:
            raise ValueError("no signature found for an opaque hook")
        return self._signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Hand on to the backend's own hook, and note what came."""
        return self.call(args, kwargs)


def signature_of(hook: str, kind: str) -> inspect.Signature | None:
    """Return the signature that a hook of this kind has, None for none."""
    if kind == "opaque":
        return None
    parameter = inspect.Parameter
    if kind == "var_keyword":
        return inspect.Signature([parameter("facts", parameter.VAR_KEYWORD)])
    names = RELEASED[hook]
    extra = [name for name in OPTIONAL if name not in names]
    before, behind = [], []
    if kind == "positional_only":
        before = [parameter(name, parameter.POSITIONAL_ONLY, default=None) for name in extra]
    if kind == "extended":
        behind = [parameter(name, parameter.KEYWORD_ONLY, default=None) for name in extra]
    released = [parameter(name, parameter.KEYWORD_ONLY) for name in names]
    return inspect.Signature([*before, *released, *behind])


def accepted_facts(hook: str, kind: str) -> tuple[str, ...]:
    """Facts of the layout that a hook of this kind takes as keywords."""
    if kind in ("var_keyword", "extended"):
        return FACTS
    return tuple(name for name in FACTS if name in RELEASED[hook])


def layout_facts(pack: Pack | None, cp_size: int) -> dict[str, bool]:
    """Return the right value of every fact.

    Args:
        pack: The microbatch's pack, None for an unpacked batch.
        cp_size: Effective CP size.
    """
    packed = pack is not None
    single = pack is not None and pack.single
    return {
        "use_local_indexer_varlen": packed and cp_size > 1,
        "single_packed_thd_sequence": single and cp_size > 1,
        PLAIN: not packed and cp_size == 1,
        "packed_thd_causal_identity_layout": packed,
        "packed_thd_single_sequence": single,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class HookCase:
    """What the calls of a case are held against.

    Attributes:
        site: Rank, microbatch and seed.
        pack: The microbatch's pack, None for an unpacked batch.
        cp_size: Effective CP size.
        offers_facts: Whether the build's dispatcher knows the optional facts.
    """

    site: Site
    pack: Pack | None
    cp_size: int
    offers_facts: bool


@dataclass(slots=True)
class _Replaced:
    """The callable before, held until the next one takes its place."""

    count: int = 0
    made: OutsideHook | None = None


_REPLACED = _Replaced()


@dataclass(slots=True)
class ThirdParty:
    """Stands before a backend hook for one case, and says what it was given."""

    spec: ThirdPartyHookSpec
    case: HookCase
    _found: list[HookCallEvidence] = field(default_factory=list)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the hook in the backend's module, and put it back."""
        if self.spec.hook is None:
            yield
            return
        backend: Any = importlib.import_module(_BACKEND)
        saved = {name: getattr(backend, name) for name in (self.spec.hook, _FULL)}
        if self.spec.hook != _FULL:
            # A party without the full hook: the dispatcher then asks for the parts.
            setattr(backend, _FULL, None)
        setattr(backend, self.spec.hook, self._outside(self.spec.hook, saved[self.spec.hook]))
        try:
            yield
        finally:
            for name, value in saved.items():
                setattr(backend, name, value)

    def evidence(self) -> Iterator[HookCallEvidence]:
        """Yield what the hook was given since the last time."""
        yield from self._found
        self._found.clear()

    def _outside(self, hook: str, original: Callable[..., Any]) -> OutsideHook:
        kind = self.spec.signature
        if kind != "replaced":
            return OutsideHook(signature_of(hook, kind), self._call(hook, kind, "", original))
        kind = "exact" if _REPLACED.count % 2 else "var_keyword"
        made, before = _in_place_of_the_last(signature_of(hook, kind))
        made.call = self._call(hook, kind, before, original)
        _REPLACED.count, _REPLACED.made = _REPLACED.count + 1, made
        return made

    def _call(self, hook: str, kind: str, before: str, original: Callable[..., Any]) -> Call:
        facts = layout_facts(self.case.pack, self.case.cp_size)
        takes = inspect.signature(original).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._found.append(self._seen(hook, kind, before, args, kwargs))
            own = {name: value for name, value in kwargs.items() if anything or name in takes}
            # What the backend's own hook is due: whether the party was, is judged on its own.
            own |= {name: facts[name] for name in OPTIONAL if name in takes}
            return original(*args, **own)

        return call

    def _seen(
        self, hook: str, kind: str, before: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HookCallEvidence:
        case, released = self.case, RELEASED[hook]
        accepted = accepted_facts(hook, kind)
        facts = layout_facts(case.pack, case.cp_size)
        offered = accepted if case.offers_facts else tuple(n for n in accepted if n in released)
        given = {name: str(kwargs[name]) for name in FACTS if name in kwargs}
        known = {*released, *FACTS}
        takes_all = kind == "var_keyword"
        return HookCallEvidence(
            **case.site.fields(),
            hook=hook,
            signature=kind,
            cp_size=case.cp_size,
            given=given,
            due={name: str(facts[name]) for name in FACTS if name in offered or name in given},
            barred=tuple(name for name in given if name not in accepted),
            unknown=() if takes_all else tuple(name for name in kwargs if name not in known),
            missing=tuple(n for n in released if n not in kwargs and n not in FACTS),
            num_positional=len(args),
            before=before,
        )


def _in_place_of_the_last(signature: inspect.Signature | None) -> tuple[OutsideHook, str]:
    """Let go of the callable before, and return a new one that has its id where it can be had."""
    if _REPLACED.made is None:
        return OutsideHook(signature, _nothing), ""
    identity, alive = id(_REPLACED.made), weakref.ref(_REPLACED.made)
    _REPLACED.made = None
    # Nothing is made in between: the memory of the dead one is the next to be given away.
    kept = [OutsideHook(signature, _nothing)]
    if alive() is not None:
        return kept[0], ALIVE
    while id(kept[-1]) != identity and len(kept) < _TRIES:
        kept.append(OutsideHook(signature, _nothing))
    return kept[-1], REUSED if id(kept[-1]) == identity else ELSEWHERE


def _nothing(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    return None
