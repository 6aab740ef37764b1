"""What a run proves: kernels by name and origin, and all that stood in for the real thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields

from harness.record.result import Attempt, Proof, ScenarioResult
from harness.record.verdict import Verdict
from reports.text import counted

MODELLED = "modelled"
HARDWARE = "hardware"
_MOST_KERNELS = 4

MODELLED_MEANING = (
    "Modelled kernels prove layout, dispatch, plan, group handling and the selection implied by "
    "the kernel's documented contract. They prove nothing about the kernel itself."
)
HARDWARE_MEANING = (
    "Hardware kernels ran on the devices listed. That no fault was seen is no proof that every "
    "access was in bounds."
)
NOTHING_MEANING = (
    "Neither hardware nor modelled kernels ran: this run proves nothing about kernels."
)
NO_MEMO = "This build keeps no layout memo, so nothing is proved of one."
UNWATCHED_MEMO = "Nothing is proved of a layout memo: no scenario watched it."


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProof:
    """The proofs of all scenarios of a run together.

    Attributes:
        kernels: Origin (``hardware``, ``modelled 1.32.0 sm100``, ``torch``) to operations.
        meaning: Sentences on what these kernels can prove.
        certified: Origin of modelled kernels to what is certified of the model.
        facts: Probed facts; a fact on which scenarios disagree has all its values, each
            with the kernels it was found for.
    """

    kernels: dict[str, tuple[str, ...]]
    meaning: tuple[str, ...]
    providers: tuple[str, ...]
    shims: tuple[str, ...]
    overlays: tuple[str, ...]
    injected: tuple[str, ...]
    facts: dict[str, str]
    certified: dict[str, str] = field(default_factory=dict)


def by_origin(proofs: Iterable[Proof]) -> dict[str, tuple[str, ...]]:
    """Return the operations of each kernel origin: hardware first, then modelled, then others."""
    found: dict[str, list[str]] = {}
    for proof in proofs:
        for operation, origin in proof.kernels.items():
            operations = found.setdefault(origin, [])
            if operation not in operations:
                operations.append(operation)
    order = sorted(found, key=lambda origin: (_place(origin), origin))
    return {origin: tuple(found[origin]) for origin in order}


def _place(origin: str) -> int:
    for place, prefix in enumerate((HARDWARE, MODELLED)):
        if origin.startswith(prefix):
            return place
    return 2


def kernels_text(proof: Proof) -> str:
    """Return where a scenario's kernels came from, in a few words.

    >>> kernels_text(Proof(kernels={"indexer_forward": "modelled 1.32.0 sm100"}))
    'modelled 1.32.0 sm100'
    """
    origins = by_origin([proof])
    if not origins:
        return "not recorded"
    if len(origins) == 1:
        return next(iter(origins))
    return " + ".join(f"{origin} ({', '.join(names)})" for origin, names in origins.items())


def models_text(proof: Proof) -> str:
    """Return where a scenario's kernels came from, and what is certified of a model.

    >>> models_text(Proof(kernels={"x": "modelled 1.32.0 sm100"}, certified="never certified"))
    'modelled 1.32.0 sm100, never certified'
    """
    return ", ".join(filter(None, (kernels_text(proof), proof.certified)))


def run_proof(results: Iterable[ScenarioResult]) -> RunProof:
    """Collect what the scenarios that ran were run on."""
    ran = [result for result in results if result.verdict is not Verdict.NOT_RUN]
    proofs = [result.last.proof for result in ran]
    kernels = by_origin(proofs)
    meaning = []
    if any(origin.startswith(HARDWARE) for origin in kernels):
        meaning.append(HARDWARE_MEANING)
    if any(origin.startswith(MODELLED) for origin in kernels):
        meaning.append(MODELLED_MEANING)
    return RunProof(
        kernels=kernels,
        meaning=(*(meaning or [NOTHING_MEANING]), *_memo_meaning(ran)),
        providers=_union((proof.provider,) for proof in proofs),
        shims=_union(proof.shims for proof in proofs),
        overlays=_union(proof.overlays for proof in proofs),
        injected=_union(proof.injected for proof in proofs),
        facts=_facts(proofs),
        certified={
            origin: proof.certified
            for proof in proofs
            for origin in proof.kernels.values()
            if origin.startswith(MODELLED) and proof.certified
        },
    )


def _memo_meaning(ran: Sequence[ScenarioResult]) -> tuple[str, ...]:
    """Say what is known of the layout memo: nothing that was not looked at."""
    if not ran:
        return ()
    seen = sum(has_memo_evidence(result.last) for result in ran)
    if seen:
        return (f"Builds and reuse of layout tables were watched in {counted(seen, 'scenario')}.",)
    if {result.last.proof.facts.get("has_layout_memo") for result in ran} == {False}:
        return (NO_MEMO,)
    return (UNWATCHED_MEMO,)


def has_memo_evidence(attempt: Attempt) -> bool:
    """Tell whether an attempt recorded anything of the layout memo."""
    return any(
        getattr(attempt, field.name) for field in fields(attempt) if field.name.startswith("memo")
    )


def _union(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _facts(proofs: list[Proof]) -> dict[str, str]:
    """Each fact's value; where scenarios disagree, each value with the kernels it was found for."""
    values: dict[str, dict[str, set[str]]] = {}
    for proof in proofs:
        for name, value in proof.facts.items():
            shown = "not probed" if value is None else str(value)
            values.setdefault(name, {}).setdefault(shown, set()).add(kernels_text(proof))
    return {name: _fact_text(found) for name, found in sorted(values.items())}


def _fact_text(found: dict[str, set[str]]) -> str:
    if len(found) == 1 or len(set.union(*found.values())) < sum(map(len, found.values())):
        return " or ".join(found)
    parts = []
    for value, kernels in found.items():
        shown = sorted(kernels)[:_MOST_KERNELS]
        more = len(kernels) - len(shown)
        parts.append(f"{value} ({'; '.join(shown)}{f'; {more} more' if more else ''})")
    return ", ".join(parts)


def proof_lines(proof: RunProof) -> Iterator[str]:
    """Say what the run's kernels were and what that proves, then what stood in for what."""
    origins: dict[tuple[str, ...], list[str]] = {}
    for origin, operations in proof.kernels.items():
        origins.setdefault(operations, []).append(origin)
    for operations, names in origins.items():
        yield f"kernels: {', '.join(names)}: {', '.join(operations)}"
    for origin, text in sorted(proof.certified.items()):
        yield f"models: {origin}: {text}"
    for sentence in proof.meaning:
        yield f"proves: {sentence}"
    for label in ("providers", "shims", "overlays", "injected"):
        values: tuple[str, ...] = getattr(proof, label)
        if values and values != ("none",):
            yield f"{label}: {', '.join(values)}"
