"""The installed dispatcher made to keep the contract with third parties' hooks, or to break it.

The released dispatcher has no optional facts to offer. These do, by the text of Megatron-LM pull
request 6206, on top of the released source.
"""

from __future__ import annotations

from pathlib import Path

from harness.production.locate import find_build

_HERE = ("core", "transformer", "experimental_attention_variant")
_ANCHOR = "def _resolve_fused_hook("
_PAIR = """\
        use_local_indexer_varlen=use_local_indexer_varlen,
        single_packed_thd_sequence=single_packed_thd_sequence,
"""
_CALL = """\
        use_local_indexer_varlen=use_local_indexer_varlen and cp_size > 1,
        single_packed_thd_sequence=single_packed_thd_sequence and cp_size > 1,
        **_facts_for(
            fn,
            __ALWAYS__,
            varlen_is_plain_causal=__PLAIN__,
            packed_thd_causal_identity_layout=use_local_indexer_varlen,
            packed_thd_single_sequence=single_packed_thd_sequence,
        ),
"""
_PLAIN_LINE = "        varlen_is_plain_causal=varlen_is_plain_causal,\n"
_FACTS_FOR = """\
_TAKEN = {}


def _facts_for(fn, always, **facts):
    import inspect

    held = _TAKEN.get(id(fn))
    if held is not None and (__TRUSTS_ID__ or held[0] is fn):
        names = held[1]
    else:
        try:
            parameters = inspect.signature(fn).parameters.values()
        except ValueError:
            names = set(always)
        else:
            names = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            if any(p.kind is p.VAR_KEYWORD for p in parameters):
                names = set(facts) - __DROPPED__
        _TAKEN[id(fn)] = (None if __TRUSTS_ID__ else fn, names)
    return {name: value for name, value in facts.items() if name in names}


"""

DISPATCHERS = {
    "right": (False, ()),
    "drops_a_fact": (False, ("packed_thd_single_sequence",)),
    "trusts_an_id": (True, ()),
}
"""Name to whether its cache goes by id alone, and the facts it forgets."""


def dispatcher_text(name: str) -> str:
    """Source of ``dsa_kernels.py`` with a dispatcher of this name."""
    trusts_id, dropped = DISPATCHERS[name]
    text = _installed("dsa_kernels.py")
    facts_for = _FACTS_FOR.replace("__TRUSTS_ID__", str(trusts_id))
    facts_for = facts_for.replace("__DROPPED__", f"set({dropped!r})")
    assert text.count(_ANCHOR) == 1 and text.count(_PAIR) == 3
    split, full = text.split("def run_fused_absorbed_sparse_attention(")
    split = split.replace(_PAIR, _filled(always="()", plain="False"))
    assert full.count(_PLAIN_LINE) == 1
    full = full.replace(_PLAIN_LINE, "").replace(
        _PAIR, _filled(always='("varlen_is_plain_causal",)', plain="varlen_is_plain_causal")
    )
    whole = f"{split}def run_fused_absorbed_sparse_attention({full}"
    return whole.replace(_ANCHOR, facts_for + _ANCHOR)


def _filled(*, always: str, plain: str) -> str:
    return _CALL.replace("__ALWAYS__", always).replace("__PLAIN__", plain)


def attention_text() -> str:
    """Source of ``dsa.py`` that tells the dispatcher of packs at any CP size."""
    text = _installed("dsa.py")
    for old, new in (
        ("cp_size > 1 and cu_seqlens_q.numel() == 2", "cu_seqlens_q.numel() == 2"),
        ("            packed_thd\n            and cp_size > 1\n", "            packed_thd\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    # What the layout builder is told of its cover stays a matter of context parallelism.
    return text


def _installed(name: str) -> str:
    return find_build().package.joinpath(*_HERE, name).read_text(encoding="utf-8")


def checkout(root: Path, changed: dict[str, str]) -> Path:
    """A checkout of links to the installed build, but for files of the attention variant."""
    source, target = find_build().package, root / "megatron"
    for part in (*_HERE, ""):
        target.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name not in (part, "__pycache__", *changed):
                (target / entry.name).symlink_to(entry)
        source, target = source / part, target / part
        if not part:
            break
    folder = root.joinpath("megatron", *_HERE)
    for name, text in changed.items():
        (folder / name).write_text(text, encoding="utf-8")
    return root
