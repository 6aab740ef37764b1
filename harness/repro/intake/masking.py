"""Secrets out of quoted lines: what an intake shows may be pasted into a public issue."""

from __future__ import annotations

import re

from harness.record.text import visible

MASK = "***"

_NAMED = re.compile(
    r"(?i)((?:[\w-]{0,40})(?:key|token|secret|passw(?:or)?d|passwd|credential|cookie|auth|api)"
    r"(?:[\w-]{0,20})[\"']?\s{0,3}[=:]\s{0,3}[\"']?)([^\s\"',;]{3,})"
)
"""``NAME=value`` and ``name: value`` with a name that promises a secret."""
_OPTION = re.compile(
    r"(?i)(--[\w-]{0,40}(?:key|token|secret|password|passwd|credential|api)[\w-]{0,20}[ =]{1,3})"
    r"([^\s\"',;-][^\s\"',;]{2,})"
)
_BEARER = re.compile(r"(?i)(bearer\s{1,3})[\w.~+/=-]{8,}")
_URL = re.compile(r"(?<=://)[^/\s@]{1,200}@")
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|sk-[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{12,}|xox[abpr]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_HARMLESS = re.compile(
    r"(?i)key_(?:pos|size|rank|length)|keys?_reorder|tokens?_per|num_tokens|max_tok"
    r"|total_tokens|tokenizer|token_dispatcher|per_token|vocab|keys?\b(?=\s*[=:]\s*\d)"
    r"|tokens?\b(?=\s*[=:]\s*\d)|authors?\b|kv_lora|api_version|topk"
)
"""Names of this field that only look like secrets."""


def masked(text: str) -> str:
    """Return a line with secrets masked and nothing hidden in it."""
    text = _URL.sub(f"{MASK}@", visible(text))
    text = _BEARER.sub(rf"\1{MASK}", _KNOWN.sub(MASK, text))
    return _NAMED.sub(_mask_named, _OPTION.sub(_mask_named, text))


def _mask_named(found: re.Match[str]) -> str:
    return found[0] if _HARMLESS.search(found[1] + found[2][:12]) else f"{found[1]}{MASK}"
