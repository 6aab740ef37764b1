"""Signs of a kind of fault: lines, and arithmetic over what lines say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from harness.repro.intake.draft import Draft
from harness.repro.intake.facts import Fact, Facts
from harness.repro.intake.kinds import ALLOWED, KINDS, SHOWN, Candidate, Sign
from harness.repro.intake.software import architecture
from harness.scenario.spec import MicrobatchSpec


def candidates(facts: Facts, draft: Draft) -> tuple[Candidate, ...]:
    """Return the kinds that have a sign, the likeliest first."""
    found = []
    for number, kind in KINDS.items():
        signs = tuple(sign for look in _LOOKS.get(number, ()) for sign in look(facts, draft))
        if signs:
            ordered = tuple(sorted(signs, key=lambda sign: -sign.weight))
            found.append(Candidate(kind=kind, signs=ordered))
    return tuple(sorted(found, key=lambda one: (one.weight, -one.kind.number), reverse=True))


Look = Callable[[Facts, Draft], Iterator[Sign]]


def _raised(pattern: str, reason: str) -> Look:
    compiled = re.compile(pattern, re.IGNORECASE)

    def look(facts: Facts, _draft: Draft) -> Iterator[Sign]:
        for fact in facts.of("exception"):
            if compiled.search(fact.line.text):
                yield Sign(weight=SHOWN, reason=reason, facts=(fact,))
                return

    return look


def _said(name: str, reason: str, weight: int = SHOWN) -> Look:
    def look(facts: Facts, _draft: Draft) -> Iterator[Sign]:
        fact = facts.first(name)
        if fact is not None:
            yield Sign(weight=weight, reason=reason, facts=(fact,))

    return look


def _is(name: str, values: tuple[object, ...], reason: str) -> Look:
    def look(facts: Facts, _draft: Draft) -> Iterator[Sign]:
        fact = facts.agreed(name)
        if fact is not None and fact.value in values:
            yield Sign(weight=ALLOWED, reason=reason, facts=(fact,))

    return look


def _address_fault_in(kernels: tuple[str, ...], reason: str) -> Look:
    def look(facts: Facts, _draft: Draft) -> Iterator[Sign]:
        error = _address_error(facts)
        kernel = next((fact for fact in facts.of("kernel") if fact.value in kernels), None)
        if error is not None and kernel is not None:
            yield Sign(weight=SHOWN, reason=reason, facts=(error, kernel))

    return look


def _address_error(facts: Facts) -> Fact | None:
    words = ("illegal memory", "misaligned", "illegal_address")
    return next(
        (
            fact
            for fact in facts.of("cuda_error")
            if any(word in str(fact.value).lower() for word in words)
        ),
        None,
    )


def _of_packs(test: Callable[[MicrobatchSpec], bool], reason: str) -> Look:
    def look(_facts: Facts, draft: Draft) -> Iterator[Sign]:
        for index, pack in enumerate(draft.packs()):
            if test(pack):
                yield Sign(weight=ALLOWED, reason=reason, facts=_facts_of(draft, index))
                return

    return look


def _facts_of(draft: Draft, index: int) -> tuple[Fact, ...]:
    head = f"microbatches[{index}]."
    return tuple(fact for one in draft.fields if one.path.startswith(head) for fact in one.facts)


def _scratch(facts: Facts, draft: Draft) -> Iterator[Sign]:
    """Two scratch entries per row and column.

    https://github.com/NVIDIA/cudnn-frontend/issues/311
    """
    cp_size = facts.number("context_parallel_size") or 1
    for index, pack in enumerate(draft.packs()):
        padded = pack.sequences if pack.padded == "auto" else pack.padded
        keys = sum(padded)
        rows = keys // cp_size
        if (rows - 1) * 2 * keys >= 2**31:
            weight = SHOWN if _address_error(facts) is not None else ALLOWED
            reason = f"{rows} rows of two times {keys} scratch entries are more than 2^31"
            yield Sign(weight=weight, reason=reason, facts=_facts_of(draft, index))
            return


def _top_left(facts: Facts, _draft: Draft) -> Iterator[Sign]:
    release, cp_size = facts.agreed("cudnn_frontend"), facts.agreed("context_parallel_size")
    if release is None or cp_size is None or not _is_from(str(release.value), (1, 26)):
        return
    if isinstance(cp_size.value, int) and cp_size.value > 1:
        yield Sign(
            weight=ALLOWED,
            reason="from 1.26 on the scoring kernel counts limits from the first row unless the "
            "caller passes offsets, and megatron-core 0.19.2 passes none",
            facts=(release, cp_size),
        )


def _is_from(version: str, least: tuple[int, int]) -> bool:
    parts = [int(part) for part in re.findall(r"\d{1,6}", version)[:2]]
    return tuple(parts) >= least


def _short_of_topk(facts: Facts, draft: Draft) -> Iterator[Sign]:
    topk = facts.agreed("dsa_indexer_topk")
    if topk is None or not isinstance(topk.value, int):
        return
    if topk.value % 2 or topk.value > 2048:
        reason = f"top-k {topk.value} is odd, or more than 2048"
        yield Sign(weight=ALLOWED, reason=reason, facts=(topk,))
    for index, pack in enumerate(draft.packs()):
        if sum(pack.sequences) < topk.value:
            reason = f"a pack of {sum(pack.sequences)} keys has fewer than top-k {topk.value}"
            yield Sign(weight=ALLOWED, reason=reason, facts=(topk, *_facts_of(draft, index)))
            return


def _uneven(facts: Facts, draft: Draft) -> Iterator[Sign]:
    cp_size = facts.number("context_parallel_size") or 1
    for index, pack in enumerate(draft.packs()):
        uneven = [] if pack.padded == "auto" else [n for n in pack.padded if n % (2 * cp_size)]
        if cp_size > 1 and uneven:
            reason = f"padded length {uneven[0]} is no multiple of 2 * CP = {2 * cp_size}"
            yield Sign(weight=SHOWN, reason=reason, facts=_facts_of(draft, index))
            return


def _changing(facts: Facts, draft: Draft) -> Iterator[Sign]:
    packs = draft.packs()
    if len(packs) > 1 and len({pack.sequences for pack in packs}) > 1:
        facts_of_last = _facts_of(draft, len(packs) - 1)
        reason = "the packs change from microbatch to microbatch"
        yield Sign(weight=ALLOWED, reason=reason, facts=facts_of_last)


def _sharing(facts: Facts, _draft: Draft) -> Iterator[Sign]:
    fact = facts.agreed("dsa_indexer_topk_freq")
    if fact is not None and isinstance(fact.value, int) and fact.value > 1:
        yield Sign(weight=ALLOWED, reason="layers share picks of another layer", facts=(fact,))


def _many_at_cp1(facts: Facts, draft: Draft) -> Iterator[Sign]:
    cp_size = facts.agreed("context_parallel_size")
    packs = draft.packs()
    if cp_size is not None and cp_size.value == 1 and any(len(p.sequences) > 1 for p in packs):
        reason = "several sequences at CP 1, where the number of sequences is easily overlooked"
        yield Sign(weight=ALLOWED, reason=reason, facts=(cp_size, *_facts_of(draft, 0)))


def _may_be_late(facts: Facts, _draft: Draft) -> Iterator[Sign]:
    error = facts.first("cuda_error")
    blocking = [f for f in facts.of("variable") if f.value == "CUDA_LAUNCH_BLOCKING=1"]
    if error is not None and not blocking:
        reason = "CUDA errors show at a later call, and no text says CUDA_LAUNCH_BLOCKING=1"
        yield Sign(weight=SHOWN, reason=reason, facts=(error,))


def _scaled_loss(facts: Facts, _draft: Draft) -> Iterator[Sign]:
    loss, cp_size = facts.agreed("dsa_indexer_loss_coeff"), facts.agreed("context_parallel_size")
    if loss is None or cp_size is None or not isinstance(loss.value, (int, float)):
        return
    if loss.value > 0 and isinstance(cp_size.value, int) and cp_size.value > 1:
        yield Sign(weight=ALLOWED, reason="indexer loss under CP", facts=(loss, cp_size))


def _odd_heads(facts: Facts, _draft: Draft) -> Iterator[Sign]:
    heads, gpu = facts.agreed("dsa_indexer_n_heads"), facts.agreed("gpu")
    if heads is not None and heads.value not in (32, 64):
        reason = f"{heads.value} indexer heads; 32 and 64 are what kernels serve everywhere"
        yield Sign(weight=ALLOWED, reason=reason, facts=(heads,))
    if gpu is not None and architecture(str(gpu.value)) is None:
        yield Sign(weight=ALLOWED, reason=f"{gpu.value} has kernels of its own", facts=(gpu,))


_TOP_K = ("indexer_top_k", "indexer_forward_top_k")
_USERS = (
    "flash_mla_sparse_fwd",
    "sparse_attention_backward",
    "indexer_backward",
    "sparse_attn_score_recompute",
)
_MASKED = ("transformer_engine", "local", "full_iteration")

_LOOKS: dict[int, tuple[Look, ...]] = {
    1: (_scratch, _address_fault_in(_TOP_K, "an address fault in top-k, whose scratch is large")),
    2: (_top_left,),
    3: (_raised(r"stride", "a stride was refused, as of weights with a last dimension of 1"),),
    4: (
        _said("nan", "a loss or gradient is NaN"),
        _raised(r"\bnan\b|\binf\b", "the message speaks of NaN or infinity"),
        _address_fault_in(_TOP_K, "top-k reads wrong candidates where most scores are very low"),
    ),
    5: (_address_fault_in(_TOP_K, "an address fault in top-k, whose candidates are limited"),),
    6: (_raised(r"determinis", "the message speaks of determinism"),),
    7: (
        _raised(r"\bk out of range|top_?k", "the message speaks of top-k"),
        _short_of_topk,
    ),
    8: (_address_fault_in(_USERS, "an address fault where picked ids are used"),),
    9: (_of_packs(lambda pack: 0 in pack.sequences, "a sequence has no length"),),
    10: (
        _of_packs(
            lambda pack: pack.padded not in ("auto", pack.sequences),
            "padded lengths are not the real ones",
        ),
    ),
    11: (
        _of_packs(lambda pack: pack.kv_sequences is not None, "keys have boundaries of their own"),
    ),
    12: (_raised(r"length mismatch|row count mismatch|size mismatch", "sizes do not fit"),),
    13: (_raised(r"divisib|multiple of", "the message speaks of a multiple"), _uneven),
    14: (_raised(r"rotary|rope", "the message speaks of rotary embedding"),),
    15: (
        _raised(r"local_cp_size|cp_group|process group", "the message speaks of the CP group"),
        _is("dynamic_context_parallel", (True,), "Dynamic CP is on"),
        _is("hybrid_context_parallel", (True,), "hybrid CP is on"),
    ),
    16: (_changing, _sharing),
    17: (_said("recompile", "a kernel is compiled again"),),
    18: (_said("fallback", "a fallback is named"), _many_at_cp1),
    19: (_said("collective_timeout", "a collective ran into its time-out"),),
    20: (
        _said("graph_warning", "a graph is spoken of"),
        _raised(r"captur", "the message speaks of capture"),
        _is("cuda_graph_impl", _MASKED, "CUDA graphs are on"),
    ),
    21: (_said("out_of_memory", "memory ran out"),),
    22: (_may_be_late, _raised(r"not supported|unsupported|compil", "a kernel was refused late")),
    23: (_scaled_loss,),
    24: (_odd_heads,),
}
