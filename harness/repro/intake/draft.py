"""A scenario of what the texts say; what they do not say keeps its default and is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from harness.repro.intake.facts import Fact, Facts
from harness.repro.intake.layouts import LISTS, notes_on_lists
from harness.repro.intake.masking import masked
from harness.repro.intake.software import architecture
from harness.scenario.spec import (
    GraphSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelledKernels,
    ModelSpec,
    ParallelSpec,
    Scenario,
    TrainingSpec,
    ValuesSpec,
)

MAX_MICROBATCHES = 64
HEAD = "Drafted from texts. Where each field comes from:"
"""First comment of every draft."""
_MODEL = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "vocab_size",
    "rotary_base",
    "layernorm_epsilon",
    "dsa_indexer_n_heads",
    "dsa_indexer_head_dim",
    "dsa_indexer_topk",
    "dsa_indexer_topk_freq",
    "dsa_indexer_skip_topk_offset",
    "dsa_indexer_rope_interleaved",
    "dsa_indexer_rotate_activation",
    "dsa_indexer_scoring_relu",
)
_PARALLEL = (
    "context_parallel_size",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "dynamic_context_parallel",
    "cp_comm_type",
)
_TRAINING = (
    "dsa_indexer_loss_coeff",
    "dsa_indexer_use_sparse_loss",
    "calculate_per_token_loss",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafted:
    """One field of the scenario and where it comes from.

    Attributes:
        path: Such as ``parallel.context_parallel_size``.
        value: As the scenario has it.
        facts: What says so; lengths come from several lists.
        rule: How the value follows where it is not the very text.
    """

    path: str
    value: Any
    facts: tuple[Fact, ...]
    rule: str = ""


@dataclass(kw_only=True, slots=True)
class Draft:
    """The scenario as far as the texts go.

    Attributes:
        fields: What they say.
        notes: What they say that no scenario can, or that contradicts itself.
        is_complete: Whether there are lengths; without them there is no scenario to run.
    """

    fields: list[Drafted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = False

    def values(self, section: str) -> dict[str, Any]:
        """Fields of a section by their own names."""
        head = f"{section}."
        return {
            one.path.removeprefix(head): one.value
            for one in self.fields
            if one.path.startswith(head) and "." not in one.path.removeprefix(head)
        }

    def packs(self) -> list[MicrobatchSpec]:
        """The microbatches."""
        found: dict[int, dict[str, Any]] = {}
        for one in self.fields:
            if one.path.startswith("microbatches["):
                index, _, name = one.path.removeprefix("microbatches[").partition("].")
                found.setdefault(int(index), {})[name] = one.value
        return [MicrobatchSpec(**values) for _index, values in sorted(found.items())]


def draft_of(facts: Facts) -> Draft:
    """Draft from facts; of what texts contradict each other about, nothing is taken."""
    draft = Draft()
    for section, names in (("model", _MODEL), ("parallel", _PARALLEL), ("training", _TRAINING)):
        for name in names:
            _take(draft, facts, name, f"{section}.{name}")
    draft.fields += _kernels(facts, draft)
    draft.fields += _training(facts, draft)
    draft.fields += _graph(facts)
    draft.fields += _values(facts, draft)
    draft.notes += notes_on_lists(facts)
    draft.fields += _microbatches(facts, draft)
    for name, values in facts.conflicts():
        said = "; ".join(f"{fact.value} ({fact.line.place})" for fact in values)
        draft.notes.append(masked(f"{name}: the texts differ, nothing taken: {said}"))
    return draft


def scenario_of(draft: Draft, name: str) -> Scenario:
    """Return the draft as a scenario; one without lengths has a stand-in for them."""
    kernels = draft.values("kernels")
    modelled = draft.values("kernels.modelled")
    graph = draft.values("graph")
    return Scenario(
        id=name,
        summary="Drafted from the texts of a report; what they do not say is a default.",
        tags=("intake",),
        model=ModelSpec(name="reported", **draft.values("model")),
        kernels=KernelsSpec(**kernels, modelled=ModelledKernels(**modelled)),
        parallel=ParallelSpec(**draft.values("parallel")),
        microbatches=tuple(draft.packs()) or (MicrobatchSpec(sequences=(1,)),),
        values=ValuesSpec(**draft.values("values")),
        training=TrainingSpec(**draft.values("training")),
        graph=GraphSpec(**graph),
    )


def scenario_text(draft: Draft, name: str) -> str:
    """Return the file: each field with its source at the head.

    A draft without lengths has no microbatches, and is no scenario file until they are written in.
    """
    from harness.scenario.writing import scenario_to_yaml

    comments = [HEAD]
    for one in draft.fields:
        rule = f", {one.rule}" if one.rule else ""
        places = ", ".join(dict.fromkeys(fact.line.place for fact in one.facts))
        comments.append(masked(f"  {one.path}: {places}{rule}"))
    comments.append("Everything else is a default, not what the job had.")
    text = scenario_to_yaml(scenario_of(draft, name), comments=comments)
    return text if draft.is_complete else "".join(_without_lengths(text))


def _without_lengths(text: str) -> Iterator[str]:
    inside = False
    for line in text.splitlines(keepends=True):
        if line.startswith("microbatches:"):
            inside = True
            yield "# microbatches: not in the texts; ask, then write them here, such as\n"
            yield "#   - sequences: [...]\n"
        elif not inside or not line.startswith((" ", "-")):
            inside = False
            yield line


def _take(draft: Draft, facts: Facts, name: str, path: str) -> None:
    found = facts.agreed(name)
    if found is None or found.value is None:
        return
    value = found.value
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        draft.notes.append(f"{name}: {value} ({found.line.place}) is no size, nothing taken")
        return
    draft.fields.append(Drafted(path=path, value=value, facts=(found,)))


def _kernels(facts: Facts, draft: Draft) -> Iterator[Drafted]:
    backend = facts.agreed("dsa_kernel_backend")
    if backend is not None and backend.value in ("none", "cudnn", "tilelang"):
        yield Drafted(path="kernels.dsa_kernel_backend", value=backend.value, facts=(backend,))
    elif backend is not None and backend.value is not None:
        draft.notes.append(
            f"dsa_kernel_backend: {backend.value} ({backend.line.place}) is not known here"
        )
    release = facts.agreed("cudnn_frontend")
    if release is not None:
        yield Drafted(path="kernels.modelled.cudnn_frontend", value=release.value, facts=(release,))
    gpu = facts.agreed("gpu")
    arch = None if gpu is None else architecture(str(gpu.value))
    if gpu is not None and arch is not None:
        rule = f"{gpu.value} is {arch}"
        yield Drafted(path="kernels.modelled.arch", value=arch, facts=(gpu,), rule=rule)
    elif gpu is not None:
        draft.notes.append(f"{gpu.value} ({gpu.line.place}): no model of that architecture")


def _training(facts: Facts, draft: Draft) -> Iterator[Drafted]:
    granularity = facts.agreed("recompute_granularity")
    modules = facts.agreed("recompute_modules")
    names = modules.value if modules is not None and isinstance(modules.value, tuple) else ()
    if granularity is not None and granularity.value == "full":
        yield Drafted(path="training.recompute", value="full", facts=(granularity,))
    elif granularity is not None and granularity.value == "selective":
        if modules is not None and "core_attn" in names:
            yield Drafted(
                path="training.recompute", value="selective", facts=(granularity, modules)
            )
        else:
            draft.notes.append(
                f"recompute_granularity selective ({granularity.line.place}): whether core "
                "attention is among its modules is not said"
            )
    backward = next(
        (fact for fact in facts.of("frame") if str(fact.value).endswith(":backward")), None
    )
    if backward is not None:
        rule = "the traceback goes through a backward"
        yield Drafted(path="training.backward", value=True, facts=(backward,), rule=rule)


def _graph(facts: Facts) -> Iterator[Drafted]:
    impl = facts.agreed("cuda_graph_impl")
    if impl is None or impl.value not in ("none", "local", "transformer_engine", "full_iteration"):
        return
    yield Drafted(path="graph.cuda_graph_impl", value=impl.value, facts=(impl,))
    modules = facts.agreed("cuda_graph_modules")
    if impl.value != "none" and modules is not None and modules.value:
        yield Drafted(path="graph.cuda_graph_modules", value=modules.value, facts=(modules,))


def _values(facts: Facts, draft: Draft) -> Iterator[Drafted]:
    bf16, fp16 = facts.agreed("bf16"), facts.agreed("fp16")
    if bf16 is not None and bf16.value is True:
        yield Drafted(path="values.dtype", value="bf16", facts=(bf16,))
    elif fp16 is not None and fp16.value is True:
        draft.notes.append(f"fp16 ({fp16.line.place}): scenarios run in bf16 or fp32")


def _microbatches(facts: Facts, draft: Draft) -> Iterator[Drafted]:
    packs = list(_packs(_of_one_rank(facts, LISTS)))
    for index, lists in enumerate(packs[:MAX_MICROBATCHES]):
        yield from _pack(index, lists, draft)
    if not any(_is_usable(fact) for lists in packs for fact in lists.values()):
        sequences = [fact for fact in _of_one_rank(facts, ("sequences",)) if _is_usable(fact)]
        for index, fact in enumerate(sequences[:MAX_MICROBATCHES]):
            draft.is_complete = True
            yield Drafted(path=f"microbatches[{index}].sequences", value=fact.value, facts=(fact,))
    if len(packs) > MAX_MICROBATCHES:
        draft.notes.append(f"{len(packs)} packs in the texts; the first {MAX_MICROBATCHES} taken")


def _of_one_rank(facts: Facts, names: tuple[str, ...]) -> list[Fact]:
    """Lists that one rank printed: of the rank that failed, else of the first one.

    A rank that failed counts even where none of its lists can be used: others' may differ.
    """
    found = list(facts.of(*names))
    ranks = [fact.line.rank for fact in found if fact.line.rank is not None]
    usable = [fact.line.rank for fact in found if _is_usable(fact) and fact.line.rank is not None]
    if not ranks:
        return found
    failed = facts.first("failed_rank")
    raised = facts.first("exception")
    wanted = [
        None if failed is None else failed.value,
        None if raised is None else raised.line.rank,
        min(usable, default=None),
        min(ranks),
    ]
    chosen = next(rank for rank in wanted if rank in ranks)
    return [fact for fact in found if fact.line.rank == chosen]


def _is_usable(fact: Fact) -> bool:
    return isinstance(fact.value, tuple)


def _packs(lists: Sequence[Fact]) -> Iterator[dict[str, Fact]]:
    """Draw lists together to packs: one that comes again begins the next pack."""
    current: dict[str, Fact] = {}
    for fact in lists:
        if fact.name in current:
            yield current
            current = {}
        current[fact.name] = fact
    if current:
        yield current


def _pack(index: int, lists: Mapping[str, Fact], draft: Draft) -> Iterator[Drafted]:
    lists = {name: fact for name, fact in lists.items() if _is_usable(fact)}
    if not lists:
        return
    places = ", ".join(fact.line.place for fact in lists.values())
    counts = {len(fact.value) for fact in lists.values()}  # type: ignore[arg-type]
    real = lists.get("cu_seqlens_q")
    if len(counts) > 1 or real is None:
        why = "no usable cu_seqlens_q" if real is None else "they differ in numbers of sequences"
        draft.notes.append(f"boundaries ({places}): {why}, nothing taken")
        return
    draft.is_complete = True
    path = f"microbatches[{index}]"
    rule = "differences of neighbours"
    yield Drafted(path=f"{path}.sequences", value=_lengths(real), facts=(real,), rule=rule)
    padded = lists.get("cu_seqlens_q_padded")
    if padded is not None:
        yield Drafted(path=f"{path}.padded", value=_lengths(padded), facts=(padded,), rule=rule)
    keys, keys_padded = lists.get("cu_seqlens_kv"), lists.get("cu_seqlens_kv_padded")
    if keys is not None and _lengths(keys) != _lengths(real):
        yield Drafted(path=f"{path}.kv_sequences", value=_lengths(keys), facts=(keys,), rule=rule)
        if keys_padded is not None:
            yield Drafted(
                path=f"{path}.kv_padded",
                value=_lengths(keys_padded),
                facts=(keys_padded,),
                rule=rule,
            )


def _lengths(fact: Fact) -> tuple[int, ...]:
    assert isinstance(fact.value, tuple), "boundaries are lists"
    bounds = [int(bound) for bound in fact.value]
    return tuple(after - before for before, after in pairwise(bounds))
