"""Megatron's arguments, however they are written: dump, YAML, command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from harness.repro.intake.facts import Fact, Value
from harness.repro.intake.lines import Line, without_comment

INTEGERS = frozenset(
    (
        "context_parallel_size",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "expert_model_parallel_size",
        "world_size",
        "micro_batch_size",
        "global_batch_size",
        "seq_length",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_head_dim",
        "qk_pos_emb_head_dim",
        "v_head_dim",
        "dsa_indexer_n_heads",
        "dsa_indexer_head_dim",
        "dsa_indexer_topk",
        "dsa_indexer_topk_freq",
        "dsa_indexer_skip_topk_offset",
        "max_seqlen_per_dp_cp_rank",
        "min_dynamic_context_parallel_size",
        "local_cp_size",
        "cp_rank",
        "nnodes",
        "nproc_per_node",
        "vocab_size",
    )
)
FLOATS = frozenset({"rotary_base", "layernorm_epsilon", "dsa_indexer_loss_coeff"})
FLAGS = frozenset(
    (
        "sequence_parallel",
        "dynamic_context_parallel",
        "hybrid_context_parallel",
        "calculate_per_token_loss",
        "dsa_indexer_use_sparse_loss",
        "dsa_indexer_rope_interleaved",
        "dsa_indexer_rotate_activation",
        "dsa_indexer_scoring_relu",
        "bf16",
        "fp16",
        "deterministic_mode",
    )
)
WORDS = frozenset(
    (
        "cp_comm_type",
        "dsa_kernel_backend",
        "recompute_granularity",
        "cuda_graph_impl",
        "sequence_packing_scheduler",
        "experimental_attention_variant",
        "attention_backend",
    )
)
LISTS = frozenset({"cuda_graph_modules", "recompute_modules"})
NAMES = INTEGERS | FLOATS | FLAGS | WORDS | LISTS

ALIASES = {
    "cp_size": "context_parallel_size",
    "tp_size": "tensor_model_parallel_size",
    "pp_size": "pipeline_model_parallel_size",
    "norm_epsilon": "layernorm_epsilon",
    "seq_len": "seq_length",
    "index_topk": "dsa_indexer_topk",
    "index_n_heads": "dsa_indexer_n_heads",
    "index_head_dim": "dsa_indexer_head_dim",
}
"""Other spellings, of command lines and model configurations."""

_DUMP = re.compile(r"\s{0,12}([a-z][a-z0-9_]{1,60}) \.{3,120} ?(.{0,400})")
_YAML = re.compile(
    r"\s{0,60}(?:- )?[\"']?(?:--)?([A-Za-z][\w-]{1,60})[\"']?\s{0,20}:\s{1,40}(.{1,400})"
)
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]{1,60})(?:=|\s{1,20}|$)")
_SAID = re.compile(r"\b([a-z][a-z0-9_]{2,40}) ?[=:] ?([\w.+-]{1,40})\b")
_INT = re.compile(r"[+-]?\d{1,18}")
_FLOAT = re.compile(r"[+-]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][+-]?\d{1,4})?")
_WORD = re.compile(r"[A-Za-z][\w+.-]{0,60}")


def argument_facts(lines: Iterable[Line]) -> Iterator[Fact]:
    """Yield arguments with their values."""
    command = False
    for line in lines:
        text = without_comment(line.text)
        if found := _DUMP.match(text):
            yield from _fact(found[1], found[2], line, "argument dump")
            continue
        if "--" in text and (command or _is_command(text)):
            yield from _options(text, line)
        elif ":" in text and (found := _YAML.match(text)):
            yield from _fact(found[1], found[2], line, "configuration")
        elif "=" in text and not text.lstrip().startswith("File "):
            for said in _SAID.finditer(text):
                yield from _fact(said[1], said[2], line, "text")
        # A command goes on in the next line where a backslash says so.
        command = text.rstrip().endswith("\\") and (command or _is_command(text))


def _is_command(text: str) -> bool:
    plain = text.lstrip("$ \t")
    if plain.startswith("--"):
        # A key of a YAML file may begin like an option.
        return not _YAML.match(text)
    starts = ("torchrun", "python", "srun", "sbatch", "bash", "mpirun", "exec", "CUDA_", "NCCL_")
    return plain.startswith(starts) or "torchrun " in plain or "pretrain_" in plain


def _options(text: str, line: Line) -> Iterator[Fact]:
    found = list(_OPTION.finditer(text))
    ends = [option.start() for option in found[1:]] + [len(text)]
    for option, end in zip(found, ends, strict=False):
        value = text[option.end() : end].strip().rstrip("\\").strip()
        yield from _fact(option[1], value, line, "command line")


def _fact(given: str, text: str, line: Line, form: str) -> Iterator[Fact]:
    name = given.lower().replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in NAMES:
        return
    value = parse(name, text, is_option=form == "command line")
    if value is not _NOTHING:
        yield Fact(name=name, value=value, line=line, form=form)  # type: ignore[arg-type]


_NOTHING = object()


def parse(name: str, text: str, *, is_option: bool = False) -> Value | object:
    """Read the value of an argument; an object of its own where the text is none.

    Args:
        name: Megatron's name.
        text: What stands behind the name.
        is_option: A flag without a value is on.
    """
    plain = text.split(" #")[0].strip().rstrip(",").strip("\"'")
    if is_option:
        if name in FLAGS:
            # What stands behind a flag belongs to somebody else.
            return True
        if name not in LISTS:
            plain = plain.split(" ")[0].strip("\"'") if plain else ""
    if plain in ("None", "null", "~"):
        return None
    if name in FLAGS:
        return {"true": True, "false": False}.get(plain.lower(), _NOTHING)
    if name in INTEGERS:
        return int(plain) if _INT.fullmatch(plain) else _NOTHING
    if name in FLOATS:
        return float(plain) if _FLOAT.fullmatch(plain) else _NOTHING
    if name in LISTS:
        return _words(plain)
    # Megatron prints what may differ from layer to layer as a list.
    plain = plain.strip("[]()'\" ")
    return plain if _WORD.fullmatch(plain) else _NOTHING


def _words(text: str) -> Value | object:
    words = [word.strip("[]()\"' ") for word in re.split(r"[,\s]+", text[:400])]
    words = [word.rpartition(".")[2] for word in words if word]
    return tuple(words) if words and all(_WORD.fullmatch(word) for word in words) else _NOTHING
