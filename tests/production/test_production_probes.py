"""Facts come from the syntax tree: code flips them, comments and docstrings do not."""

from __future__ import annotations

import pytest

from harness.production.call_checks import CALL_FACTS
from harness.production.locate import DSA_FOLDER, find_build
from harness.production.probes import build_facts

CONFIG = "class TransformerConfig:\n    hidden_size: int = 0\n"
PARAMS = "class PackedSeqParams:\n    qkv_format: str = None\n"


@pytest.fixture
def checkout(tmp_path):
    def make(**sources: str):
        core = tmp_path / "megatron" / "core"
        folder = tmp_path / "megatron" / DSA_FOLDER
        folder.mkdir(parents=True)
        (core / "package_info.py").write_text("MAJOR = 0\nMINOR = 20\nPATCH = 0\n")
        (core / "transformer" / "transformer_config.py").write_text(sources.pop("config", CONFIG))
        (core / "packed_seq_params.py").write_text(sources.pop("params", PARAMS))
        for name in ("dsa", "dsa_kernels", "dsa_cudnn_kernels", "dsa_layout"):
            (folder / f"{name}.py").write_text(sources.pop(name, ""))
        for name, text in sources.items():
            (folder / f"{name}.py").write_text(text)
        return find_build(str(tmp_path))

    return make


def test_released_build():
    facts = build_facts(find_build())
    assert facts == {
        "passes_causal_offsets": False,
        "has_scoring_plan": False,
        "reports_unfused_plan": False,
        "has_layout_memo": False,
        "has_host_layout": False,
        "has_dynamic_cp": False,
        "warns_packed_cp_graphs": False,
        **dict.fromkeys(CALL_FACTS, False),
    }


@pytest.mark.parametrize(
    ("sources", "fact"),
    [
        ({"dsa_cudnn_kernels": "f(q, q_causal_offsets=o)\n"}, "passes_causal_offsets"),
        ({"dsa_cudnn_kernels": "f(q, **{'q_causal_offsets': o})\n"}, "passes_causal_offsets"),
        ({"dsa_scoring_plan": "class Plan: ...\n"}, "has_scoring_plan"),
        ({"dsa_kernels": "report_unfused_scoring_once(d, 'x')\n"}, "reports_unfused_plan"),
        ({"dsa_layout": "def _memo_key(): ...\n"}, "has_layout_memo"),
        ({"dsa": "class A:\n    def _memoized(self): ...\n"}, "has_layout_memo"),
        ({"dsa_layout": "def build_tables_from_host(): ...\n"}, "has_host_layout"),
        ({"params": "class P:\n    dsa_layout_memo: dict = None\n"}, "has_layout_memo"),
        ({"config": "class C:\n    dynamic_context_parallel: bool = False\n"}, "has_dynamic_cp"),
        (
            {"config": "warn('packed DSA with CP under CUDA graphs')\n"},
            "warns_packed_cp_graphs",
        ),
    ],
)
def test_code_flips_one_fact(checkout, sources, fact):
    facts = build_facts(checkout(**sources))
    assert [name for name, value in facts.items() if value] == [fact]


def test_words_in_comments_and_docstrings_flip_nothing(checkout):
    facts = build_facts(
        checkout(
            dsa_cudnn_kernels='"""Passes q_causal_offsets."""\n# f(q_causal_offsets=o)\n',
            dsa_layout='"""A memo would help."""\n',
            dsa='def report_unfused_scoring_once(): ...\n"""report_unfused_scoring_once()"""\n',
        )
    )
    assert not any(facts.values())
