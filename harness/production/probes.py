"""Facts of a build, read from its source text: builds are known by facts, not by version strings.

The syntax tree is searched, never a plain word, so that a comment or a docstring cannot flip a
fact. Facts whose truth only a run can show are recorded by the ranks beside these.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from harness.production.call_checks import call_facts
from harness.production.locate import DSA_FOLDER, MegatronBuild


def build_facts(build: MegatronBuild) -> dict[str, bool]:
    """Probe a build.

    Returns:
        Fact name to value: ``passes_causal_offsets`` (the cuDNN caller hands ``q_causal_offsets``
        to the forward wrapper), ``has_scoring_plan`` (a scoring-plan module exists),
        ``reports_unfused_plan`` (something calls the reporter of unfused plans),
        ``has_layout_memo`` (DSAttention, ``PackedSeqParams`` or the layout module keeps a
        per-microbatch memo), ``has_host_layout`` (the layout module builds tables from lengths on
        the host), ``has_dynamic_cp`` (the configuration has ``dynamic_context_parallel``),
        ``warns_packed_cp_graphs`` (a warning about packed DSA, CP and graphs exists), and those of
        ``call_checks`` about what is checked before a kernel is called.
    """
    return dict(_facts_at(build.package))


@functools.cache
def _facts_at(package: Path) -> dict[str, bool]:
    core, variant = package / "core", package / DSA_FOLDER
    kernels = _tree(variant / "dsa_cudnn_kernels.py")
    config = _tree(core / "transformer" / "transformer_config.py")
    return {
        "passes_causal_offsets": _passes_keyword(kernels, "q_causal_offsets"),
        "has_scoring_plan": (variant / "dsa_scoring_plan.py").exists(),
        "reports_unfused_plan": any(
            _calls(_tree(path), "report_unfused_scoring_once") for path in variant.glob("dsa*.py")
        ),
        "has_layout_memo": _has_layout_memo(core, variant),
        "has_host_layout": any(
            name.endswith("_from_host") for name in _defined(_tree(variant / "dsa_layout.py"))
        ),
        "has_dynamic_cp": any(
            "dynamic_context_parallel" in _class_fields(tree)
            for tree in (config, _tree(core / "model_parallel_config.py"))
        ),
        "warns_packed_cp_graphs": _warns_packed_graphs(config),
        **call_facts(variant),
    }


def _tree(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return ast.parse(text, filename=str(path))


def _passes_keyword(tree: ast.AST, keyword: str) -> bool:
    """True when some call passes ``keyword``, directly or through a dict that is unpacked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == keyword:
            return True
        if isinstance(node, ast.Dict) and any(
            isinstance(key, ast.Constant) and key.value == keyword for key in node.keys
        ):
            return True
    return False


def _class_fields(tree: ast.Module) -> set[str]:
    return {
        statement.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _defined(tree: ast.Module) -> set[str]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def _calls(tree: ast.Module, function: str) -> bool:
    """True when a function of that name is called, by name or as an attribute."""
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (getattr(func, "id", getattr(func, "attr", None)) for func in called)
    return function in set(names)


def _has_layout_memo(core: Path, variant: Path) -> bool:
    """True when the attention or the layout module defines, or a pack declares, a layout memo."""
    names = _defined(_tree(variant / "dsa_layout.py")) | _defined(_tree(variant / "dsa.py"))
    names |= _class_fields(_tree(core / "packed_seq_params.py"))
    return any("memo" in name.lower() for name in names)


def _warns_packed_graphs(config: ast.Module) -> bool:
    """True when a string constant of the configuration speaks of packed DSA under graphs."""
    for node in ast.walk(config):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.lower()
            if "dsa" in text and "packed" in text and "graph" in text:
                return True
    return False
