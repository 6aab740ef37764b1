"""Facts of a build, read from its source text: builds are known by facts, not by version strings.

The syntax tree is searched, never a plain word, so that a comment or a docstring cannot flip a
fact. Facts whose truth only a run can show are recorded by the ranks beside these.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from harness.production.locate import DSA_FOLDER, MegatronBuild


def build_facts(build: MegatronBuild) -> dict[str, bool]:
    """Probe a build.

    Returns:
        Fact name to value: ``passes_causal_offsets`` (the cuDNN caller hands ``q_causal_offsets``
        to the forward wrapper), ``has_scoring_plan`` (a scoring-plan module exists),
        ``has_layout_memo`` (``PackedSeqParams`` or the layout module keeps a per-microbatch memo),
        ``has_dynamic_cp`` (the configuration has ``dynamic_context_parallel``),
        ``warns_packed_cp_graphs`` (a warning about packed DSA, CP and graphs exists).
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
        "has_layout_memo": _has_layout_memo(core, _tree(variant / "dsa_layout.py")),
        "has_dynamic_cp": "dynamic_context_parallel" in _class_fields(config),
        "warns_packed_cp_graphs": _warns_packed_graphs(config),
    }


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


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


def _has_layout_memo(core: Path, layout: ast.Module) -> bool:
    """True when the layout module defines, or PackedSeqParams declares, a layout memo."""
    names = {
        node.name for node in ast.walk(layout) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
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
