import inspect
import sys

import pytest
from kernel_inputs import FORWARD_PAIRS

from harness.kernels import ARCHES, DEFECTS, RELEASES, modelled_namespace, release_table
from harness.kernels.defects import NOT_MODELLED
from harness.kernels.detect import (
    installed_facts,
    installed_kernels,
    namespace_facts,
)

_INSTALLED = installed_kernels().cudnn_frontend
needs_installed = pytest.mark.skipif(
    _INSTALLED not in RELEASES, reason="needs an installed nvidia-cudnn-frontend that is modelled"
)


def test_modelled_releases_are_those_with_dsa():
    assert list(RELEASES) == [
        *("1.24.0", "1.24.1", "1.25.0", "1.26.0", "1.27.0", "1.28.0"),
        *("1.29.0", "1.29.1", "1.30.0", "1.31.0", "1.32.0"),
    ]


def test_unknown_release_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'1\.23\.0' is not modelled.*1\.24\.0"):
        release_table("1.23.0")


def test_unknown_arch_and_defect_are_named():
    with pytest.raises(ValueError, match="sm120"):
        modelled_namespace(arch="sm120")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="d999"):
        modelled_namespace(defects=("d999",))
    with pytest.raises(ValueError, match="tuple of names"):
        modelled_namespace(defects="d446")  # type: ignore[arg-type]


def test_every_released_defect_is_described():
    used = {
        name for release in RELEASES.values() for arch in ARCHES for name in release.defects[arch]
    }
    released = {name: d for name, d in DEFECTS.items() if d.basis != "elsewhere"}
    assert used == set(released)
    assert all(d.link.startswith("https://github.com/NVIDIA/") for d in released.values())
    assert all(d.summary and d.link.startswith("https://github.com/") for d in DEFECTS.values())


@pytest.mark.parametrize(
    ("defect", "arch", "first", "last"),
    [
        ("d311", "sm100", "1.24.0", "1.25.0"),
        ("d311_residue", "sm100", "1.26.0", "1.31.0"),
        ("d446", "sm90", "1.25.0", "1.26.0"),
        ("d406", "sm100", "1.24.0", "1.26.0"),
        ("short_rows", "sm100", "1.24.0", "1.31.0"),
        ("mask_leak", "sm90", "1.25.0", "1.32.0"),
        ("short_max_k", "sm100", "1.24.0", "1.32.0"),
        ("short_max_q", "sm90", "1.25.0", "1.32.0"),
        ("long_lengths", "sm100", "1.24.0", "1.32.0"),
        ("d550", "sm100", "1.26.0", "1.28.0"),
        ("foreign_ids", "sm100", "1.24.0", "1.32.0"),
        ("unzeroed_dk", "sm90", "1.24.0", "1.27.0"),
        ("unzeroed_dk", "sm100", "1.24.0", "1.27.0"),
        ("d297", "sm100", "1.24.0", "1.25.0"),
        ("d317", "sm100", "1.24.0", "1.25.0"),
        ("d1549", "sm100", "1.24.0", "1.32.0"),
        ("slot_arithmetic", "sm100", "1.24.0", "1.30.0"),
        ("invalid_slots", "sm90", "1.24.0", "1.32.0"),
        ("tail_slots", "sm90", "1.24.0", "1.32.0"),
        ("single_row", "sm90", "1.24.0", "1.32.0"),
        ("long_topk_lengths", "sm90", "1.24.0", "1.32.0"),
        ("d384", "sm90", "1.24.0", "1.26.0"),
        ("d785", "sm90", "1.24.0", "1.28.0"),
        ("d877", "sm100", "1.24.0", "1.28.0"),
        ("d433", "sm100", "1.24.0", "1.26.0"),
        ("d298", "sm100", "1.24.0", "1.25.0"),
        ("lse_over_read", "sm100", "1.24.0", "1.32.0"),
    ],
)
def test_releases_that_ship_a_defect(defect, arch, first, last):
    shipped = [version for version, release in RELEASES.items() if defect in release.defects[arch]]
    assert (shipped[0], shipped[-1]) == (first, last)


@pytest.mark.parametrize(
    ("arch", "defects"),
    [
        ("sm90", {"d311", "d446", "d406", "mask_leak", "short_max_q", "d785", "d384"}),
        ("sm100", {"d311", "d446", "short_max_k", "d877", "d433", "d550", "d317", "d298"}),
    ],
)
def test_defects_belong_to_architectures(arch, defects):
    shipped = {name for release in RELEASES.values() for name in release.defects[arch]}
    assert defects <= shipped
    other = "sm100" if arch == "sm90" else "sm90"
    alone = {"d785", "d384", "tail_slots"} if arch == "sm100" else {"d877", "d433", "d550", "d298"}
    assert not alone & shipped
    assert alone <= {name for release in RELEASES.values() for name in release.defects[other]}


def test_races_that_nobody_has_pinned_down_are_named_but_have_no_switch():
    assert NOT_MODELLED
    assert not NOT_MODELLED.keys() & DEFECTS.keys()


def test_defects_argument_selects():
    assert "d446" in modelled_namespace("1.26.0").defects
    assert modelled_namespace("1.26.0", defects="none").defects == frozenset()
    assert modelled_namespace("1.32.0", defects=("d446",)).defects == {"d446"}


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_facts_follow_the_release(version, arch):
    namespace = modelled_namespace(version, arch)
    facts = namespace_facts(namespace)
    late = version not in ("1.24.0", "1.24.1", "1.25.0")
    assert facts.accepts_causal_offsets == namespace.accepts_causal_offsets == late
    assert facts.mask_alignment == namespace.mask_alignment
    assert facts.mask_alignment == ("top_left" if late else "bottom_right")
    assert facts.reason is None


def test_facts_of_an_object_without_forward_say_why():
    facts = namespace_facts(object())
    assert (facts.accepts_causal_offsets, facts.mask_alignment) == (None, None)
    assert "indexer_forward_wrapper" in str(facts.reason)


def test_unknown_attribute_and_missing_wrapper_raise_attribute_error():
    with pytest.raises(AttributeError, match="DSA has no attribute 'indexer_forwrd_wrapper'"):
        _ = modelled_namespace().indexer_forwrd_wrapper
    with pytest.raises(AttributeError):
        _ = modelled_namespace("1.26.0").indexer_forward_top_k_wrapper
    assert "indexer_forward_top_k_wrapper" in dir(modelled_namespace("1.27.0"))


def test_keywords_of_another_release_raise_type_error():
    with pytest.raises(TypeError, match="q_causal_offsets"):
        modelled_namespace("1.25.0").indexer_forward_wrapper(0, 0, 0, q_causal_offsets=None)
    with pytest.raises(TypeError, match="tie_break"):
        modelled_namespace("1.30.0").indexer_top_k_wrapper(0, 0, 1, tie_break=1)
    with pytest.raises(TypeError, match="deterministic"):
        modelled_namespace("1.31.0").indexer_top_k_wrapper(0, 0, 1, deterministic=True)
    with pytest.raises(TypeError, match="top_k"):
        modelled_namespace().indexer_top_k_wrapper(0, 0)


def test_too_many_positional_arguments_raise_type_error():
    arguments = [0] * 16
    with pytest.raises(TypeError, match="too many positional"):
        modelled_namespace("1.25.0").indexer_forward_wrapper(*arguments)


def test_out_is_inserted_before_stream():
    before = list(
        inspect.signature(modelled_namespace("1.26.0").indexer_forward_wrapper).parameters
    )
    after = list(inspect.signature(modelled_namespace("1.27.0").indexer_forward_wrapper).parameters)
    assert before[10] == "stream"
    assert after[10:12] == ["out", "stream"]


@needs_installed
def test_signatures_equal_those_of_the_installed_release():
    DSA = pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend").DSA
    modelled = modelled_namespace(_INSTALLED)
    for name, signature in modelled.release.signatures.items():
        real = inspect.signature(getattr(DSA, name)).parameters.values()
        assert [(p.name, p.default) for p in real] == [
            (p.name, p.default) for p in signature.parameters.values()
        ]


@needs_installed
def test_installed_facts_equal_the_modelled_ones():
    facts = installed_facts()
    if facts.reason is not None:
        pytest.skip(f"needs the CuTe DSL: {facts.reason}")
    assert facts == namespace_facts(modelled_namespace(_INSTALLED))


def test_an_import_that_fails_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    facts = installed_facts()
    assert facts.accepts_causal_offsets is None
    assert "cudnn does not import" in str(facts.reason)
