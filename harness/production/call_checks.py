"""Facts about what a build checks of its fused calls before a kernel is called.

Read from the syntax trees of the dispatcher, of the cuDNN caller and of the scoring plan. A check
is an ``assert``, or an ``if`` whose body raises, whose condition looks at the property in question
of an operand of the call. A check that declines (returns None) is none: the call then goes another
way, and what comes out is judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_MODULES = ("dsa_kernels.py", "dsa_cudnn_kernels.py", "dsa_scoring_plan.py")
_OPERANDS = (
    *("q", "k", "weights", "q_indexer", "k_indexer", "indexer_weights"),
    *("q_bshd", "k_bsd", "k_bshd", "w_bsh", "query", "key"),
)
"""Names that the caller's functions give the tensors of a scoring call."""
_BACKWARD = "indexer_backward_wrapper"
_LAYOUT_FACT = "packed_thd_single_sequence"
"""A fact that the dispatcher of pull request 6206 offers to hooks that take it."""

CALL_FACTS = (
    "says_global_ids",
    "refuses_device",
    "refuses_dtype",
    "refuses_view",
    "refuses_tp_slice",
    "refuses_gradient_arity",
    "refuses_missing_bounds",
    "offers_layout_facts",
)
"""Facts of this module; all of the build, read before anything runs."""


def call_facts(variant: Path) -> dict[str, bool]:
    """Probe the folder of the attention variant.

    Returns:
        ``says_global_ids`` (the caller says that ids of indexer backward are global), and for each
        property that ``perturb`` can break whether the build refuses such a call:
        ``refuses_device``, ``refuses_dtype``, ``refuses_view``, ``refuses_tp_slice``,
        ``refuses_gradient_arity``, ``refuses_missing_bounds``. ``offers_layout_facts`` is about
        the dispatcher's callees: whether backend hooks are offered the facts of a pack that hold
        whatever CP is.
    """
    trees = [_tree(variant / name) for name in _MODULES]
    conditions = [test for tree in trees for test in _checked(tree)]
    return {
        "says_global_ids": any(_says_global(tree) for tree in trees),
        "refuses_device": any(_compares(test, "device") for test in conditions),
        "refuses_dtype": any(_compares(test, "dtype") for test in conditions),
        "refuses_view": any(_asks_for_layout(test) for test in conditions),
        "refuses_tp_slice": any(_reads(test, "dsa_indexer_n_heads") for test in conditions),
        "refuses_gradient_arity": any(_reads(test, "needs_input_grad") for test in conditions),
        "refuses_missing_bounds": any(_asks_for_bounds(test) for test in conditions),
        "offers_layout_facts": _passes(trees[0], _LAYOUT_FACT),
    }


def _tree(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return ast.parse(text, filename=str(path))


def _checked(tree: ast.AST) -> Iterator[ast.expr]:
    """Conditions whose failure, or truth, raises."""
    for node in ast.walk(tree):
        raises = isinstance(node, ast.If) and any(isinstance(s, ast.Raise) for s in node.body)
        if isinstance(node, ast.Assert | ast.If) and (raises or isinstance(node, ast.Assert)):
            yield node.test


def _root(node: ast.expr) -> str | None:
    """Name at the start of an attribute, call or subscript."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _of_operand(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _root(node) in _OPERANDS


def _compares(test: ast.expr, attribute: str) -> bool:
    """True when the condition compares that attribute of an operand with something."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == attribute and _of_operand(part)
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
    )


def _asks_for_layout(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("is_contiguous", "stride")
        and _of_operand(node)
        for node in ast.walk(test)
    )


def _reads(test: ast.expr, attribute: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(test)
    )


def _asks_for_bounds(test: ast.expr) -> bool:
    """True when the condition asks whether starts or ends are None."""
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and node.left.id in ("starts", "ends", "varlen_starts", "varlen_ends")
        and any(isinstance(c, ast.Constant) and c.value is None for c in node.comparators)
        for node in ast.walk(test)
    )


def _passes(tree: ast.AST, keyword: str) -> bool:
    return any(isinstance(node, ast.keyword) and node.arg == keyword for node in ast.walk(tree))


def _says_global(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == _BACKWARD
        and any(keyword.arg == "topk_indices_global" for keyword in node.keywords)
        for node in ast.walk(tree)
    )
