"""Dispatchers that give a third party's hook too little, or the facts of a dead one, are found."""

from __future__ import annotations

import sys
import types

import pytest
from hook_dispatchers import DISPATCHERS, attention_text, checkout, dispatcher_text
from planted_runs import ROOT, Run, run

from harness.layout import pack_sequences
from harness.production import third_party
from harness.production.call_checks import call_facts
from harness.production.locate import DSA_FOLDER
from harness.production.third_party import HookCase, ThirdParty
from harness.record.verdict import Outcome, Verdict
from harness.reference.site import Site
from harness.scenario.call_spec import ThirdPartyHookSpec
from harness.scenario.names import HOOK_SIGNATURES, THIRD_PARTY_HOOKS

BACKEND = "stand_in_backend"
FULL = "run_fused_dsa_attention"
SITE = Site(global_rank=0, cp_rank=0, microbatch=0, layer=1, seed=0)
FILES = ("topk", "topk-takes-facts-without-cp", "replaced")


@pytest.fixture
def dispatcher(request, monkeypatch):
    """A dispatcher module of the name in the test's parameter, before a stand-in backend."""
    module = types.ModuleType("dispatcher")
    exec(compile(dispatcher_text(request.param), "dispatcher", "exec"), vars(module))
    backend = types.ModuleType(BACKEND)
    for name in THIRD_PARTY_HOOKS:
        setattr(backend, name, lambda **given: given)
    module._load_backend = lambda _config: backend
    monkeypatch.setattr(third_party, "_BACKEND", BACKEND)
    monkeypatch.setattr(third_party, "_REPLACED", third_party._Replaced())
    monkeypatch.setitem(sys.modules, BACKEND, backend)
    return module


def ask(module, hook, *, cp_size, times=1, kind="exact"):
    """What is wrong with the calls that the dispatcher makes of a single packed sequence."""
    pack = pack_sequences([8], cp_size=cp_size)
    found = []
    for _ in range(times):
        case = HookCase(site=SITE, pack=pack, cp_size=cp_size, offers_facts=True)
        party = ThirdParty(spec=ThirdPartyHookSpec(hook=hook, signature=kind), case=case)
        with party.installed():
            _enter(module, hook, cp_size)
        found += list(party.evidence())
    return found


def _enter(module, hook, cp_size):
    packed = {
        "use_relu": True,
        "use_local_indexer_varlen": True,
        "single_packed_thd_sequence": True,
        "cp_size": cp_size,
    }
    if hook == FULL:
        names = third_party.RELEASED[hook]
        module.run_fused_dsa_attention(
            **(dict.fromkeys(names) | packed | {"varlen_is_plain_causal": False})
        )
    elif hook == "run_fused_qk_topk":
        module.run_fused_qk_topk(None, 1, 2, 3, 4, 5, 6, 7, **packed)
    else:
        module.run_fused_qk_topk_with_loss(None, *range(7), *range(5), **packed)


ANY_KIND = [kind for kind in HOOK_SIGNATURES if kind != "replaced"]


@pytest.mark.parametrize("dispatcher", ["right"], indirect=True)
@pytest.mark.parametrize("hook", THIRD_PARTY_HOOKS)
@pytest.mark.parametrize("cp_size", [1, 2])
def test_a_dispatcher_that_keeps_the_contract_has_no_fault(dispatcher, hook, cp_size):
    for kind in ANY_KIND:
        (call,) = ask(dispatcher, hook, cp_size=cp_size, kind=kind)
        assert call.faults == (), kind
    calls = ask(dispatcher, hook, cp_size=cp_size, kind="replaced", times=4)
    assert [call.faults for call in calls] == [()] * 4


@pytest.mark.parametrize("dispatcher", ["drops_a_fact"], indirect=True)
def test_a_dropped_fact_is_found_where_it_is_due(dispatcher):
    faults = {
        kind: ask(dispatcher, "run_fused_qk_topk", cp_size=1, kind=kind)[0].faults
        for kind in ANY_KIND
    }
    assert faults.pop("var_keyword") == ("did not pass packed_thd_single_sequence",)
    assert set(faults.values()) == {()}


@pytest.mark.parametrize("dispatcher", ["trusts_an_id"], indirect=True)
def test_a_signature_of_a_dead_callable_is_found(dispatcher):
    calls = ask(dispatcher, "run_fused_qk_topk", cp_size=1, kind="replaced", times=4)
    first, *later = calls
    assert first.faults == ()
    for call in later:
        if call.signature == "exact":
            assert all("which the hook does not take" in fault for fault in call.faults)
    assert any(call.faults for call in later)
    # The same cache is right as long as no id is used again.
    for kind in ANY_KIND:
        assert ask(dispatcher, FULL, cp_size=2, kind=kind)[0].signature == kind


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    """The shipped scenarios without CP through each dispatcher."""
    done = {}
    for name in DISPATCHERS:
        root = checkout(
            tmp_path_factory.mktemp(name),
            {"dsa_kernels.py": dispatcher_text(name), "dsa.py": attention_text()},
        )
        assert call_facts(root / "megatron" / DSA_FOLDER)["offers_layout_facts"]
        paths = [ROOT / "scenarios" / "hooks" / f"{file}.yaml" for file in FILES]
        arguments = ("-k", "not cp2", "--megatron", str(root))
        done[name] = run(1, paths, tmp_path_factory.mktemp("runs"), *arguments, timeout_s=400)
    return done


def kinds(run_: Run) -> dict[str, set[str]]:
    return {
        name.removeprefix("hooks/"): {d.kind for d in result.last.deviations}
        for name, result in run_.results.items()
    }


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(1300)
def test_the_shipped_scenarios_tell_the_dispatchers_apart(runs):
    assert {r.outcome for r in runs["right"].results.values()} == {Outcome.EXPECTED}
    dropped = runs["drops_a_fact"]
    red = {name for name, found in kinds(dropped).items() if found}
    assert red == {
        "topk-takes-facts-without-cp[signature-var_keyword]",
        "replaced[signature-replaced-cp1]",
    }
    result = dropped.results["hooks/topk-takes-facts-without-cp[signature-var_keyword]"]
    assert (result.verdict, result.outcome) == (Verdict.WRONG_PATH, Outcome.UNEXPECTED)
    assert "did not pass packed_thd_single_sequence" in result.explanation
    stale = kinds(runs["trusts_an_id"])
    assert {name for name, found in stale.items() if found} == {"replaced[signature-replaced-cp1]"}
    assert stale["replaced[signature-replaced-cp1]"] == {"stale_signature"}
