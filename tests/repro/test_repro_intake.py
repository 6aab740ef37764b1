"""Intake: the right fields with their places, nothing else, and what is missing asked for."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.repro.intake.arguments import NAMES, parse
from harness.repro.intake.draft import scenario_of, scenario_text
from harness.repro.intake.facts import MANY
from harness.repro.intake.intake import take_in
from harness.repro.intake.kinds import KINDS, SHOWN
from harness.repro.intake.lines import HEAD_BYTES, TAIL_BYTES, IntakeError, read_text
from harness.repro.intake.masking import masked
from harness.repro.intake.report import as_data, markdown
from harness.repro.intake.signs import _LOOKS
from harness.scenario.loader import load
from launch.cli import cli

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "samples"

FIELDS = {
    "traceback.txt": {},
    "arguments.txt": {
        "model.num_layers": 78,
        "model.hidden_size": 6144,
        "model.num_attention_heads": 64,
        "model.q_lora_rank": 2048,
        "model.kv_lora_rank": 512,
        "model.qk_pos_emb_head_dim": 64,
        "model.v_head_dim": 256,
        "model.dsa_indexer_n_heads": 32,
        "model.dsa_indexer_head_dim": 128,
        "model.dsa_indexer_topk": 2048,
        "parallel.context_parallel_size": 32,
        "parallel.tensor_model_parallel_size": 2,
        "parallel.sequence_parallel": True,
        "parallel.cp_comm_type": "all_gather",
        "training.dsa_indexer_loss_coeff": 0.001,
        "training.dsa_indexer_use_sparse_loss": True,
        "training.calculate_per_token_loss": False,
        "kernels.dsa_kernel_backend": "cudnn",
        "graph.cuda_graph_impl": "none",
        "values.dtype": "bf16",
    },
    "collect_env.txt": {
        "kernels.modelled.cudnn_frontend": "1.26.0",
        "kernels.modelled.arch": "sm100",
    },
    "config.yaml": {
        "model.num_attention_heads": 64,
        "model.kv_lora_rank": 512,
        "model.dsa_indexer_n_heads": 64,
        "model.dsa_indexer_head_dim": 128,
        "model.dsa_indexer_topk": 512,
        "parallel.context_parallel_size": 4,
        "parallel.tensor_model_parallel_size": 1,
        "parallel.cp_comm_type": "all_gather",
        "kernels.dsa_kernel_backend": "cudnn",
        "training.recompute": "full",
        "graph.cuda_graph_impl": "local",
        "graph.cuda_graph_modules": ("attn",),
        "values.dtype": "bf16",
    },
    "command.sh": {
        "model.num_attention_heads": 128,
        "model.kv_lora_rank": 512,
        "model.dsa_indexer_n_heads": 32,
        "model.dsa_indexer_head_dim": 128,
        "model.dsa_indexer_topk": 1024,
        "parallel.context_parallel_size": 8,
        "parallel.tensor_model_parallel_size": 2,
        "parallel.sequence_parallel": True,
        "kernels.dsa_kernel_backend": "cudnn",
        "training.recompute": "selective",
        "values.dtype": "bf16",
    },
    "slurm-segfault.log": {
        "microbatches[0].sequences": (4096, 8192),
        "microbatches[0].padded": (4096, 8192),
        "microbatches[1].sequences": (4090, 4096, 4102),
        "microbatches[1].padded": (4096, 4096, 4112),
    },
    "slurm-hang.log": {
        "parallel.context_parallel_size": 8,
        "parallel.dynamic_context_parallel": True,
    },
    "divisibility.txt": {"microbatches[0].sequences": (149999, 1)},
    "issue.md": {
        "model.dsa_indexer_n_heads": 24,
        "parallel.context_parallel_size": 2,
        "parallel.tensor_model_parallel_size": 1,
        "parallel.dynamic_context_parallel": True,
        "kernels.modelled.cudnn_frontend": "1.28.0",
        "kernels.modelled.arch": "sm100",
        "microbatches[0].sequences": (0, 512, 0, 512),
    },
    "out-of-memory.log": {
        "parallel.context_parallel_size": 1,
        "kernels.modelled.cudnn_frontend": "1.32.0",
        "kernels.modelled.arch": "sm90",
        "microbatches[0].sequences": (400000, 400000),
    },
}

LIKELY = {
    "traceback.txt": {1, 4, 5, 22},
    "slurm-hang.log": {19},
    "divisibility.txt": {13},
    "issue.md": {4},
    "out-of-memory.log": {18, 21},
}

ASKED = {
    "traceback.txt": ("GPU", "Megatron", "cudnn-frontend", "CUTLASS DSL", "versions", "lengths"),
    "arguments.txt": ("GPU", "Megatron", "cudnn-frontend", "CUTLASS DSL", "versions", "lengths"),
    "collect_env.txt": ("lengths", "padded lengths", "sizes", "Dynamic CP", "backend"),
    "config.yaml": ("GPU", "Megatron", "cudnn-frontend"),
    "command.sh": ("GPU", "Megatron", "cudnn-frontend"),
    "slurm-segfault.log": ("GPU", "Megatron", "cudnn-frontend", "CUTLASS DSL", "versions", "sizes"),
    "slurm-hang.log": ("GPU", "Megatron", "cudnn-frontend", "CUTLASS DSL", "versions", "lengths"),
    "divisibility.txt": ("GPU", "Megatron", "cudnn-frontend"),
    "issue.md": ("CUTLASS DSL", "versions", "padded lengths", "history", "backend"),
    "out-of-memory.log": ("CUTLASS DSL", "versions", "padded lengths", "history", "sizes"),
}


def test_there_are_ten_samples():
    assert sorted(path.name for path in SAMPLES.iterdir()) == sorted(FIELDS)
    assert len(FIELDS) == 10


@pytest.mark.parametrize("name", FIELDS)
def test_a_sample_gives_its_fields_and_no_other(name):
    draft = take_in([SAMPLES / name]).draft
    assert {one.path: one.value for one in draft.fields} == FIELDS[name]


@pytest.mark.parametrize("name", FIELDS)
def test_every_drafted_value_occurs_in_its_lines(name):
    text = (SAMPLES / name).read_text().splitlines()
    for one in take_in([SAMPLES / name]).draft.fields:
        assert one.facts, one.path
        for fact in one.facts:
            line = fact.line
            assert text[line.number - 1].endswith(line.text), "another line than it says"
        said = [fact.line.text for fact in one.facts]
        if one.path.startswith("microbatches["):
            rest = "\n".join(text[one.facts[0].line.number - 1 :])
            numbers = one.value if "differences" not in one.rule else accumulate(one.value)
            assert all(str(number) in rest for number in numbers), one.path
        elif one.path == "kernels.modelled.arch":
            assert one.facts[0].value in said[0]
        elif one.value is True and "-" in said[0]:
            assert one.path.rpartition(".")[2].replace("_", "-") in said[0]
        else:
            first = one.value[0] if isinstance(one.value, tuple) else one.value
            wanted = "bf16" if first == "bf16" else str(first)
            assert wanted.lower() in said[0].lower(), one.path


@pytest.mark.parametrize("name", ASKED)
def test_what_is_missing_is_asked_in_the_order_of_maintainers(name):
    topics = [one.topic for one in take_in([SAMPLES / name]).questions]
    assert tuple(topics[: len(ASKED[name])]) == ASKED[name]
    assert topics[-1] == "repeats"


@pytest.mark.parametrize("name", FIELDS)
def test_nothing_is_asked_that_was_said(name):
    found = take_in([SAMPLES / name])
    drafted = {one.path for one in found.draft.fields}
    for question in found.questions:
        assert not drafted & set(question.fields), question


@pytest.mark.parametrize("name", LIKELY)
def test_likely_kinds_are_named_with_their_lines(name):
    found = take_in([SAMPLES / name]).candidates
    shown = {one.kind.number for one in found if one.weight[0] == SHOWN}
    assert shown == LIKELY[name]
    for candidate in found:
        for sign in candidate.signs:
            assert sign.facts, candidate.kind.title


def test_every_kind_has_signs_and_a_scenario_of_the_tree():
    assert sorted(KINDS) == sorted(_LOOKS) == list(range(1, 25))
    for kind in KINDS.values():
        assert load([ROOT / kind.scenarios]).scenarios, kind.scenarios


def test_texts_together_make_a_scenario_that_verifies(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text(
        "cu_seqlens_q: [0, 65536, 131072]\ncu_seqlens_q_padded: [0, 65536, 131072]\ncp_rank=31\n"
    )
    names = ("traceback.txt", "arguments.txt", "collect_env.txt")
    files = [*(str(SAMPLES / name) for name in names), str(lengths)]
    done = CliRunner().invoke(cli, ["intake", *files, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    result = load([tmp_path / "out" / "scenario.yaml"])
    assert result.ok, result.problems
    scenario = result.scenarios[0].scenario
    assert scenario.microbatches[0].sequences == (65536, 65536)
    assert scenario.parallel.context_parallel_size == 32
    assert scenario.kernels.modelled.cudnn_frontend == "1.26.0"
    assert scenario.kernels.modelled.arch == "sm100"
    assert scenario.parallel.cp_ranks == "all"
    data = json.loads((tmp_path / "out" / "intake.json").read_text())
    assert 2 in [one["number"] for one in data["candidates"]]
    assert (tmp_path / "out" / "intake.md").read_text() in done.output


def test_without_lengths_there_is_no_scenario_to_run(tmp_path):
    done = CliRunner().invoke(
        cli, ["intake", str(SAMPLES / "arguments.txt"), "--out", str(tmp_path)]
    )
    assert done.exit_code == 0
    partial = tmp_path / "scenario.partial.yaml"
    assert not (tmp_path / "scenario.yaml").exists()
    result = load([partial])
    assert [str(one).rpartition(": ")[2] for one in result.problems if "microbatches" in str(one)]
    text = partial.read_text()
    assert "sequences: [1]" not in text
    partial.write_text(text + "microbatches: [{sequences: [128, 64]}]\n")
    assert load([partial]).ok


def test_one_draft_is_left_when_another_intake_writes_the_other(tmp_path):
    lengths, out = tmp_path / "lengths.txt", tmp_path / "out"
    lengths.write_text("cu_seqlens_q: [0, 64]\n")
    arguments = str(SAMPLES / "arguments.txt")
    for files, left in (
        ([arguments, str(lengths)], "scenario.yaml"),
        ([arguments], "scenario.partial.yaml"),
        ([arguments, str(lengths)], "scenario.yaml"),
    ):
        done = CliRunner().invoke(cli, ["intake", *files, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert [path.name for path in out.glob("*.yaml")] == [left]
    assert "draft of an earlier intake, removed" in done.output
    (out / "scenario.yaml").write_text("id: by/hand\n")
    done = CliRunner().invoke(cli, ["intake", arguments, "--out", str(out)])
    assert (out / "scenario.yaml").read_text() == "id: by/hand\n", "a file of somebody else"


def test_what_the_texts_do_not_say_is_a_default():
    draft = take_in([SAMPLES / "out-of-memory.log"]).draft
    scenario = scenario_of(draft, "a/b")
    assert scenario.kernels.dsa_kernel_backend == "none"
    assert scenario.level == "attention"
    assert scenario.expect.verdict == "pass"
    assert "Everything else is a default" in scenario_text(draft, "a/b")


def test_texts_that_differ_are_asked_about_and_not_taken(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("context_parallel_size ........ 4\nnvidia-cudnn-frontend==1.26.0\n")
    second.write_text("context_parallel_size: 8\nnvidia-cudnn-frontend 1.26.0\n")
    found = take_in([first, second])
    assert [one.path for one in found.draft.fields] == ["kernels.modelled.cudnn_frontend"]
    assert found.questions[0].topic == "context_parallel_size"
    assert f"4 ({first}:1) or 8 ({second}:1)" in found.questions[0].text


def test_a_version_with_and_without_its_local_part_is_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("torch==2.9.0+cu130\nPyTorch version: 2.9.0\n")
    found = take_in([path])
    assert found.facts.agreed("torch").value == "2.9.0+cu130"
    assert not list(found.facts.conflicts())


def test_secrets_are_in_no_output(tmp_path):
    secrets = (
        "0123456789abcdef0123456789abcdef01234567",
        "hf_abcdefghijklmnopqrstuvwxyz012345",
        "abcdefabcdefabcdefabcdefabcdefabcdefabcd",
        "hunter2",
        "sk-abcdefghijklmnop1234",
    )
    more = tmp_path / "more.log"
    more.write_text(
        "RuntimeError: cannot open https://me:hunter2@host/x with sk-abcdefghijklmnop1234\n"
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered "
        "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n"
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(
        cli, ["intake", *map(str, SAMPLES.iterdir()), str(more), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    texts = [done.output, *(path.read_text() for path in out.iterdir())]
    assert len(texts) == 4
    for text in texts:
        for secret in secrets:
            assert secret not in text
    assert "***" in done.output


def test_a_huge_log_costs_its_head_and_its_end(tmp_path):
    path = tmp_path / "huge.log"
    line = b"step 1 | lm loss 2.0 | grad norm 1.0\n"
    with open(path, "wb") as stream:
        stream.write(b"  context_parallel_size ........ 4\n")
        for _ in range(60):
            stream.write(line * (2**20 // len(line)))
        stream.write(b"RuntimeError: CUDA error: an illegal memory access was encountered\n")
    read = read_text(path)
    lines = read.lines
    assert sum(len(one.text) for one in lines) <= HEAD_BYTES + TAIL_BYTES
    assert lines[0].number == 1
    with open(path, "rb") as stream:
        assert lines[-1].number == read.num_lines == sum(1 for _ in stream)
    assert lines[-1].text.startswith("RuntimeError")
    at_the_gap = [one.number for one in lines if one.number in (read.gap.first, read.gap.last)]
    assert read.gap.last - read.gap.first + 1 == read.num_lines - len(lines)
    assert at_the_gap == []
    assert read.gap.num_bytes == path.stat().st_size - HEAD_BYTES - TAIL_BYTES
    found = take_in([path])
    part = f"{read.gap.num_bytes} bytes in the middle, lines {read.gap.first} to {read.gap.last}"
    assert f"{read.num_lines} lines, " in markdown(found)
    assert f"{part}, are not read" in markdown(found)
    assert as_data(found)["not_read"][str(path)]["bytes"] == read.gap.num_bytes
    path.write_bytes(path.read_bytes()[:4000] + b"\nCUDA error: misaligned address\n")
    found = take_in([path])
    assert found.facts.first("cuda_error").value == "misaligned address"
    assert found.draft.values("parallel") == {"context_parallel_size": 4}


HOSTILE = (
    "a" * 4000,
    "-" * 4000,
    "--" + "a-" * 2000,
    "torchrun " + "--a=" * 1000,
    "cu_seqlens_q=[" + "0," * 1990,
    "cu_seqlens_q" * 330,
    "key" * 1333 + "=",
    "api" * 500 + " " * 2000 + "=x",
    'File "' + "x" * 3990,
    "Error" * 800 + ": ",
    "x." * 1900 + "Error: y",
    "megatron " * 440 + "commit",
    "WorkNCCL(" * 440,
    "context_parallel_size " + "." * 3900,
    "loss" * 1000 + "nan",
    " " * 3999 + ":",
    "\x1b[" * 2000,
    "torch" * 800,
    "://" * 1300 + "@",
    "login" * 800 + " -",
    "login " * 660,
    "1." * 2000,
)


def test_hostile_lines_are_read_in_linear_time(tmp_path):
    """Patterns that backtrack would not come to an end within the time limit of a test."""
    path = tmp_path / "hostile.log"
    path.write_text("\n".join(HOSTILE * 20))
    found = take_in([path])
    assert found.draft.fields == []
    assert markdown(found)
    for line in HOSTILE:
        masked(line)


def test_control_characters_are_shown_and_not_obeyed(tmp_path):
    path = tmp_path / "odd.log"
    path.write_bytes(
        b"\x1b[31mRuntimeError: \x1b]0;title\x07 CUDA error: misaligned address \xe2\x80\xae\n"
        b"progress 1\rprogress 2\rcontext_parallel_size: 2\n"
    )
    found = take_in([path])
    text = markdown(found)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert found.draft.values("parallel") == {"context_parallel_size": 2}


def test_what_is_no_text_file_is_refused_in_one_line(tmp_path):
    binary, pipe = tmp_path / "core", tmp_path / "pipe"
    binary.write_bytes(b"\x7fELF\0\0\0")
    os.mkfifo(pipe)
    for path in (binary, pipe, tmp_path, tmp_path / "absent"):
        with pytest.raises(IntakeError, match=str(path)):
            read_text(path)
    done = CliRunner().invoke(cli, ["intake", str(binary)])
    assert done.exit_code == 2
    assert "found binary data" in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_draft_that_does_not_verify_says_so(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "context_parallel_size: 4\ncu_seqlens_q: [0, 60, 128]\ncu_seqlens_q_padded: [0, 60, 128]\n"
    )
    done = CliRunner().invoke(cli, ["intake", str(path)])
    assert done.exit_code == 0
    assert "The draft does not verify" in done.output
    assert "is not a multiple of 2 * cp_size" in done.output
    shown = [one.kind.number for one in take_in([path]).candidates if one.weight[0] == SHOWN]
    assert shown == [13]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_value_that_is_none_of_its_kind_is_no_value(name):
    for text in ("", "???", "1e", "[", "-", "é"):
        value = parse(name, text)
        assert not isinstance(value, (int, float, str, tuple)) or value == (), (name, text)


def test_lists_that_were_shortened_in_print_are_none(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("cu_seqlens_q=tensor([0, 64, ..., 4096])\ncu_seqlens_q=[0, 64, 32]\n")
    assert take_in([path]).draft.fields == []


def test_names_that_come_often_are_no_contradictions():
    assert not MANY & NAMES - {"cp_rank", "local_cp_size"}


def test_the_data_is_json():
    found = take_in([SAMPLES / "issue.md"])
    data = json.loads(json.dumps(as_data(found)))
    assert data["software"]["megatron_commit"] == "2b3e3b70c1"
    assert data["fields"][0]["sources"][0]["line"] == 10


def test_secrets_are_masked_in_every_field_of_the_data(tmp_path):
    path = tmp_path / "HF_TOKEN=hf_abcdefghijklmnop.log"
    path.write_text("GPU 0: NVIDIA GeForce API_KEY=0123456789abcdef\nfp16=True\n")
    done = CliRunner().invoke(cli, ["intake", str(path), "--format", "json"])
    assert done.exit_code == 0, done.output
    assert "hf_abcdefghijklmnop" not in done.output
    assert "0123456789abcdef" not in done.output
