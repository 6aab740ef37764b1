"""Another party's hook says what it takes, and notes what it is given against what was due."""

from __future__ import annotations

import gc
import inspect
import sys
import types

import pytest

from harness.layout import pack_sequences
from harness.production import third_party
from harness.production.third_party import (
    FACTS,
    OPTIONAL,
    RELEASED,
    HookCase,
    ThirdParty,
    accepted_facts,
    layout_facts,
    signature_of,
)
from harness.record.hook_call import ALIVE, ELSEWHERE, REUSED
from harness.reference.site import Site
from harness.scenario.call_spec import ThirdPartyHookSpec
from harness.scenario.names import HOOK_SIGNATURES, THIRD_PARTY_HOOKS

SITE = Site(global_rank=0, cp_rank=0, microbatch=0, layer=1, seed=0)
TOPK, FULL = "run_fused_qk_topk", "run_fused_dsa_attention"
PLAIN = "varlen_is_plain_causal"


@pytest.fixture
def backend(monkeypatch):
    """A backend module of whose hooks each returns the keywords it was given."""
    module = types.ModuleType("backend")

    def hook(**given):
        return given

    for name in THIRD_PARTY_HOOKS:
        setattr(module, name, hook)
    monkeypatch.setattr(third_party, "_BACKEND", "stand_in_backend")
    monkeypatch.setitem(sys.modules, "stand_in_backend", module)
    monkeypatch.setattr(third_party, "_REPLACED", third_party._Replaced())
    return module


def case(pack=None, cp_size=1, *, offers=True):
    return HookCase(site=SITE, pack=pack, cp_size=cp_size, offers_facts=offers)


def kwargs_of(hook, facts):
    return {name: facts.get(name, "thing") for name in RELEASED[hook]}


def dispatch(fn, hook, facts, *, cp_size):
    """A right dispatcher: optional facts go to those who take them, the old two are about CP."""
    given = kwargs_of(hook, facts)
    given |= {name: facts[name] and cp_size > 1 for name in third_party.CP_ONLY}
    given.pop(PLAIN, None)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:
        taken = (PLAIN,) if hook == FULL else ()
    else:
        kinds = {p.name: p.kind for p in parameters}
        anything = inspect.Parameter.VAR_KEYWORD in kinds.values()
        taken = tuple(
            name
            for name in OPTIONAL
            if anything or kinds.get(name) == inspect.Parameter.KEYWORD_ONLY
        )
    return fn(**given, **{name: facts[name] for name in taken})


ASKED = [
    (None, 1),
    (pack_sequences([8], cp_size=1), 1),
    (pack_sequences([8, 3], cp_size=1), 1),
    (pack_sequences([8], cp_size=2), 2),
    (pack_sequences([8, 3], cp_size=2), 2),
]


def whatever_cp_is(pack, cp_size):
    facts = layout_facts(pack, cp_size)
    return facts | {
        "use_local_indexer_varlen": facts["packed_thd_causal_identity_layout"],
        "single_packed_thd_sequence": facts["packed_thd_single_sequence"],
    }


@pytest.mark.parametrize("kind", [kind for kind in HOOK_SIGNATURES if kind != "replaced"])
@pytest.mark.parametrize("hook", THIRD_PARTY_HOOKS)
@pytest.mark.parametrize(("pack", "cp_size"), ASKED)
def test_a_right_dispatcher_has_no_fault_with_any_signature(backend, kind, hook, pack, cp_size):
    party = ThirdParty(spec=ThirdPartyHookSpec(hook=hook, signature=kind), case=case(pack, cp_size))
    with party.installed():
        dispatch(getattr(backend, hook), hook, whatever_cp_is(pack, cp_size), cp_size=cp_size)
    (seen,) = party.evidence()
    assert seen.faults == ()
    assert set(seen.due) == set(accepted_facts(hook, kind))
    assert list(party.evidence()) == []


def given_by(backend, kind, hook, change, *, pack=ASKED[1][0], cp_size=1, offers=True):
    party = ThirdParty(
        spec=ThirdPartyHookSpec(hook=hook, signature=kind), case=case(pack, cp_size, offers=offers)
    )
    facts = layout_facts(pack, cp_size)
    given = kwargs_of(hook, facts) | {name: facts[name] for name in accepted_facts(hook, kind)}
    with party.installed():
        getattr(backend, hook)(**change(given))
    (seen,) = party.evidence()
    return seen.faults


def same(given):
    return given


@pytest.mark.parametrize(
    ("kind", "hook", "change", "fault"),
    [
        ("exact", TOPK, lambda g: g | {PLAIN: False}, f"passed {PLAIN}, which the hook does not"),
        ("opaque", TOPK, lambda g: g | {PLAIN: False}, f"passed {PLAIN}, which the hook does not"),
        ("positional_only", TOPK, lambda g: g | {PLAIN: False}, f"passed {PLAIN}, which"),
        ("exact", FULL, lambda g: g | {"packed_thd_single_sequence": True}, "passed packed_thd"),
        ("exact", TOPK, lambda g: g | {"news": 1}, "passed news, which the hook does not take"),
        ("opaque", FULL, lambda g: without(g, PLAIN), f"did not pass {PLAIN}"),
        ("var_keyword", TOPK, lambda g: without(g, OPTIONAL[1]), f"did not pass {OPTIONAL[1]}"),
        ("extended", TOPK, lambda g: without(g, OPTIONAL[2]), f"did not pass {OPTIONAL[2]}"),
        ("exact", TOPK, lambda g: without(g, "cp_size"), "did not pass cp_size"),
        (
            "exact",
            TOPK,
            lambda g: g | {"use_local_indexer_varlen": True},
            "passed use_local_indexer_varlen = True, due is False",
        ),
        ("var_keyword", TOPK, lambda g: g | {PLAIN: True}, f"passed {PLAIN} = True, due is False"),
    ],
)
def test_every_fault_of_a_dispatcher_is_told(backend, kind, hook, change, fault):
    assert given_by(backend, kind, hook, same) == ()
    (found,) = given_by(backend, kind, hook, change)
    assert fault in found


def without(given, name):
    return {key: value for key, value in given.items() if key != name}


def test_a_build_that_knows_no_optional_facts_owes_none(backend):
    def released(given):
        return {name: given[name] for name in RELEASED[TOPK]}

    assert given_by(backend, "var_keyword", TOPK, released, offers=False) == ()
    assert given_by(backend, "var_keyword", TOPK, released, offers=True) != ()


def test_the_backends_own_hook_is_asked_and_put_back(backend):
    own = {name: getattr(backend, name) for name in THIRD_PARTY_HOOKS}
    party = ThirdParty(spec=ThirdPartyHookSpec(hook=TOPK), case=case())
    with party.installed():
        assert getattr(backend, FULL) is None
        assert backend.run_fused_qk_topk(q=1)["q"] == 1
    assert {name: getattr(backend, name) for name in THIRD_PARTY_HOOKS} == own


def test_no_hook_leaves_the_backend_alone(backend):
    own = vars(backend).copy()
    with ThirdParty(spec=ThirdPartyHookSpec(), case=case()).installed():
        assert vars(backend) == own


def replaced(backend, *, keep=None):
    """What became of the id before, and the kind, over four cases."""
    seen = []
    for _ in range(4):
        spec = ThirdPartyHookSpec(hook=TOPK, signature="replaced")
        party = ThirdParty(spec=spec, case=case())
        with party.installed():
            hook = backend.run_fused_qk_topk
            if keep is not None:
                keep.append(hook)
            hook(**kwargs_of(TOPK, layout_facts(None, 1)))
            del hook
        seen += [(item.signature, item.before) for item in party.evidence()]
        gc.collect()
    return seen


def test_a_replaced_hook_has_the_id_of_the_dead_one_and_another_signature(backend):
    kinds = ["var_keyword", "exact"] * 2
    assert replaced(backend) == list(zip(kinds, ["", REUSED, REUSED, REUSED], strict=True))


def test_a_build_that_keeps_the_callable_leaves_its_id_to_nobody(backend):
    kept = []
    assert [before for _kind, before in replaced(backend, keep=kept)] == ["", ALIVE, ALIVE, ALIVE]


def test_an_id_that_cannot_be_had_is_told(backend, monkeypatch):
    monkeypatch.setattr(third_party, "_TRIES", 8)
    monkeypatch.setattr(third_party, "id", lambda thing: len(ids.setdefault(thing, ids)), False)
    ids = Ids()
    assert [before for _kind, before in replaced(backend)] == ["", *[ELSEWHERE] * 3]


class Ids:
    """Gives every question another answer."""

    def __init__(self):
        self.count = 0

    def setdefault(self, _thing, _default):
        self.count += 1
        return range(self.count)


def test_signatures_are_what_inspect_finds():
    for kind in HOOK_SIGNATURES:
        if kind == "replaced":
            continue
        hook = third_party.OutsideHook(signature_of(TOPK, kind), lambda args, kwargs: None)
        if kind == "opaque":
            with pytest.raises(ValueError, match="no signature"):
                inspect.signature(hook)
            continue
        kinds = {p.name: p.kind.name for p in inspect.signature(hook).parameters.values()}
        wanted = {
            "exact": {},
            "extended": dict.fromkeys(OPTIONAL, "KEYWORD_ONLY"),
            "positional_only": dict.fromkeys(OPTIONAL, "POSITIONAL_ONLY"),
            "var_keyword": {"facts": "VAR_KEYWORD"},
        }[kind]
        released = {} if kind == "var_keyword" else dict.fromkeys(RELEASED[TOPK], "KEYWORD_ONLY")
        assert kinds == released | wanted


@pytest.mark.parametrize("hook", THIRD_PARTY_HOOKS)
def test_released_keywords_are_those_of_the_installed_release(hook):
    from megatron.core.transformer.experimental_attention_variant import dsa_cudnn_kernels

    parameters = inspect.signature(getattr(dsa_cudnn_kernels, hook)).parameters
    assert set(parameters) == set(RELEASED[hook])
    assert set(FACTS) - set(parameters) <= set(OPTIONAL)
