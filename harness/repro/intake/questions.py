"""What is missing, in the order in which maintainers of kernels and Megatron ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.repro.intake.draft import Draft
from harness.repro.intake.facts import Facts
from harness.repro.intake.masking import masked


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question.

    Attributes:
        topic: In a word or two.
        text: As it is put to the customer.
        fields: What of the draft is a default until it is answered.
    """

    topic: str
    text: str
    fields: tuple[str, ...] = ()


def questions(facts: Facts, draft: Draft) -> tuple[Question, ...]:
    """Return what is to be asked, contradictions first."""
    asked = (ask(facts, draft) for ask in _ORDER)
    return (*_contradictions(facts), *(one for one in asked if one is not None))


def _contradictions(facts: Facts) -> Iterator[Question]:
    for name, values in facts.conflicts():
        said = " or ".join(f"{fact.value} ({fact.line.place})" for fact in values)
        yield Question(topic=name, text=masked(f"Which is right: {name} {said}?"))


Ask = Callable[[Facts, Draft], Question | None]
"""Returns a question, None where its answer is there."""


def _unless(names: tuple[str, ...], topic: str, text: str, fields: tuple[str, ...] = ()) -> Ask:
    """Ask where none of some names is said."""

    def ask(facts: Facts, _draft: Draft) -> Question | None:
        return None if facts.of(*names) else Question(topic=topic, text=text, fields=fields)

    return ask


def _each(names: dict[str, str], topic: str, section: str = "", hint: str = "") -> Ask:
    """Ask for those of some names that are not said, each with its words."""

    def ask(facts: Facts, _draft: Draft) -> Question | None:
        missing = [name for name in names if not facts.of(name)]
        if not missing:
            return None
        fields = tuple(f"{section}.{name}" for name in missing) if section else ()
        text = ", ".join(names[name] for name in missing) + hint
        return Question(topic=topic, text=text, fields=fields)

    return ask


def _ask_lengths(_facts: Facts, draft: Draft) -> Question | None:
    if draft.is_complete:
        return None
    return Question(
        topic="lengths",
        text="cu_seqlens_q and cu_seqlens_kv of the microbatch that failed and of those before it, "
        "on the rank that failed first (docs/capture.md records them)",
        fields=("microbatches",),
    )


def _ask_history(_facts: Facts, draft: Draft) -> Question | None:
    if len(draft.packs()) != 1:
        return None
    return Question(
        topic="history",
        text="Does it fail with this pack in the first microbatch, too? If not: the lengths of the "
        "microbatches before it (docs/capture.md records them)",
    )


def _ask_padding(_facts: Facts, draft: Draft) -> Question | None:
    if draft.packs() and all(pack.padded != "auto" for pack in draft.packs()):
        return None
    return Question(
        topic="padded lengths",
        text="cu_seqlens_q_padded and cu_seqlens_kv_padded of the same microbatches",
        fields=("microbatches[].padded",),
    )


def _ask_launches(facts: Facts, _draft: Draft) -> Question | None:
    switches = [str(fact.value) for fact in facts.of("variable")]
    if not facts.of("cuda_error") or "CUDA_LAUNCH_BLOCKING=1" in switches:
        return None
    return Question(
        topic="launches that block",
        text="The same with CUDA_LAUNCH_BLOCKING=1: does the error move to another call?",
    )


def _ask_repeats(_facts: Facts, _draft: Draft) -> Question | None:
    return Question(
        topic="repeats",
        text="Does it fail every time, at the same microbatch and rank? Since which change?",
    )


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_ORDER: tuple[Ask, ...] = (
    _unless(
        ("gpu",),
        "GPU",
        "Which GPU, how many, and on how many nodes? (nvidia-smi -L)",
        ("kernels.modelled.arch",),
    ),
    _unless(
        ("megatron_commit", "megatron_core", "megatron_branch"),
        "Megatron",
        "Which Megatron commit, branch or release, and with which changes of your own?",
    ),
    _unless(
        ("cudnn_frontend",),
        "cudnn-frontend",
        "Which nvidia-cudnn-frontend? (pip show nvidia-cudnn-frontend)",
        ("kernels.modelled.cudnn_frontend",),
    ),
    _unless(("cute_dsl",), "CUTLASS DSL", "Which nvidia-cutlass-dsl?"),
    _each(
        {"torch": "torch", "cuda": "CUDA", "driver": "driver", "cudnn": "cuDNN"},
        "versions",
        hint=" (python -m torch.utils.collect_env)",
    ),
    _ask_lengths,
    _ask_padding,
    _ask_history,
    _each(_same("context_parallel_size", "tensor_model_parallel_size"), "sizes", "parallel"),
    _each(
        _same("dynamic_context_parallel"),
        "Dynamic CP",
        "parallel",
        hint=": is it on, and which effective size had each microbatch?",
    ),
    _each(_same("dsa_kernel_backend"), "backend", "kernels"),
    _each(
        _same("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"),
        "indexer",
        "model",
    ),
    _each(
        _same("num_attention_heads", "kv_lora_rank", "qk_pos_emb_head_dim", "v_head_dim"),
        "attention",
        "model",
    ),
    _each(
        _same("dsa_indexer_loss_coeff", "dsa_indexer_use_sparse_loss"),
        "indexer loss",
        "training",
    ),
    _each(
        {"recompute_granularity": "recompute_granularity and its modules"},
        "recomputation",
        hint="; did it fail in the forward or in the backward?",
    ),
    _each(_same("cuda_graph_impl"), "CUDA graphs", "graph"),
    _unless(
        ("exception",),
        "traceback",
        "The whole log of the rank that failed first, from its first error on",
    ),
    _ask_launches,
    _ask_repeats,
)
"""Hardware, versions, shapes, configuration, then the log: as maintainers ask in public threads,
such as https://github.com/NVIDIA/Megatron-LM/issues/7463 ."""
