"""Each rule across fields: a file that breaks it, and a healthy twin that differs by a value."""

import pytest

from harness.scenario.problems import Severity
from harness.scenario.rules import RULES


def at(text: str, problem) -> str:
    """Return the text that stands at a problem's place."""
    return text.splitlines()[problem.line - 1][problem.column - 1 :]


def write(extra: str, sequences: str = "{sequences: [256]}") -> str:
    return (
        f"id: case/rule\nsummary: One rule.\nmodel: small\nmicrobatches: [{sequences}]\n{extra}\n"
    )


CP4 = "parallel: {context_parallel_size: 4}"
CUDNN = "kernels: {dsa_kernel_backend: cudnn}"

SIX = ", ".join(["{sequences: [8]}"] * 6)

ERRORS = [
    pytest.param(
        write("level: model\ntraining: {recompute: full}"),
        write("level: model\ntraining: {recompute: full, backward: true}"),
        "full}",
        ("happens in backward", "training.backward: true"),
        id="recomputation without backward",
    ),
    pytest.param(
        write("level: scorer\ntraining: {recompute: full}"),
        write("level: scorer\ntraining: {recompute: none}"),
        "full}",
        ("level scorer has no backward", "level: model"),
        id="recomputation at level scorer",
    ),
    pytest.param(
        write(
            "level: model\n"
            "training: {recompute: selective, backward: true, recompute_modules: []}"
        ),
        write(
            "level: model\n"
            "training: {recompute: selective, backward: true, recompute_modules: [mlp]}"
        ),
        "[]}",
        ("selective recomputation of nothing", "recompute: none"),
        id="recomputation of nothing",
    ),
    pytest.param(
        write("level: model\ntraining: {recompute: full, backward: true, recompute_num_layers: 9}"),
        write("level: model\ntraining: {recompute: full, backward: true, recompute_num_layers: 1}"),
        "9}",
        ("at most model.num_layers = ", "found 9"),
        id="recomputation of more layers than there are",
    ),
    pytest.param(
        write("expect: {memory_per_microbatch: 0}"),
        write("expect: {memory_per_microbatch: 0}", SIX),
        "0}",
        ("over 6 microbatches or more", "found 1"),
        id="growth of memory over one microbatch",
    ),
    pytest.param(
        write("level: scorer\nexpect: {layout_builds_per_microbatch: 1}"),
        write("level: attention\nexpect: {layout_builds_per_microbatch: 1}"),
        "1}",
        "the harness asks itself",
        id="layout builds at level scorer",
    ),
    pytest.param(
        write(CP4, "{sequences: [128, 64], padded: [128, 60]}"),
        write(CP4, "{sequences: [128, 64], padded: [128, 64]}"),
        "60]}",
        ("microbatches[0].padded[1]", "60", "64"),
        id="real above padded",
    ),
    pytest.param(
        write(CP4, "{sequences: [128, 60], padded: [128, 60]}"),
        write(CP4, "{sequences: [128, 60], padded: [128, 64]}"),
        "60]}]",
        ("60 is not a multiple of", "2 * cp_size = 8"),
        id="padded no multiple of 2 cp",
    ),
    pytest.param(
        write(CP4, "{sequences: [128, 64], padded: [128]}"),
        write(CP4, "{sequences: [128, 64], padded: auto}"),
        "[128]}]",
        ("padded has 1 entries but sequences has 2",),
        id="padded of another number",
    ),
    pytest.param(
        write(CP4, "{sequences: [128, 64], kv_sequences: [128]}"),
        write(CP4, "{sequences: [128, 64], kv_sequences: [128, 8]}"),
        "[128]}]",
        ("kv_sequences has 1 entries but there are 2",),
        id="kv of another number",
    ),
    pytest.param(
        write(CP4, "{sequences: [128], kv_sequences: [64], kv_padded: [60]}"),
        write(CP4, "{sequences: [128], kv_sequences: [64], kv_padded: [72]}"),
        "60]}",
        ("microbatches[0].kv_padded[0]", "padded key length 60", "64"),
        id="real key above padded",
    ),
    pytest.param(
        write(CP4, "{sequences: [128], kv_padded: [128]}"),
        write(CP4, "{sequences: [128], kv_sequences: [128], kv_padded: [128]}"),
        "[128]}]",
        ("no kv_sequences to pad",),
        id="kv padding of nothing",
    ),
    pytest.param(
        write(CP4, "{sequences: [128], tail_padding: 6}"),
        write(CP4, "{sequences: [128], tail_padding: 8}"),
        "6}",
        ("tail_padding 6", "cp_size = 4", "use 8"),
        id="tail not divisible",
    ),
    pytest.param(
        write(CP4, "{sequences: [2147483647]}"),
        write(CP4, "{sequences: [2147483640]}"),
        "[2147483647]",
        ("2147483648", "2147483647"),
        id="beyond int32",
    ),
    pytest.param(
        write("", "{sequences: [64, 32], qkv_format: sbhd}"),
        write("", "{sequences: [64, 64], qkv_format: sbhd}"),
        "32]",
        ("equal lengths", "found 32 after 64"),
        id="sbhd of unequal lengths",
    ),
    pytest.param(
        write(CP4, "{sequences: [60], qkv_format: sbhd}"),
        write(CP4, "{sequences: [64], qkv_format: sbhd}"),
        "[60]",
        ("60 is not a multiple of 2 * cp_size = 8",),
        id="sbhd not divisible",
    ),
    pytest.param(
        write("", "{sequences: [0], qkv_format: sbhd}"),
        write("", "{sequences: [0], qkv_format: thd}"),
        "0]",
        ("at least 1, found 0",),
        id="sbhd of length 0",
    ),
    pytest.param(
        write("", "{sequences: [64], qkv_format: sbhd, tail_padding: 8}"),
        write("", "{sequences: [64], qkv_format: thd, tail_padding: 8}"),
        "8}",
        ("tail_padding is for qkv_format thd only",),
        id="sbhd with packing keys",
    ),
    pytest.param(
        write(CP4, "{sequences: [64], cp: 2}"),
        write("parallel: {context_parallel_size: 4, dynamic_context_parallel: true}",
              "{sequences: [64], cp: 2}"),
        "2}",
        ("effective CP 2", "context_parallel_size 4", "dynamic_context_parallel"),
        id="effective cp without dynamic cp",
    ),
    pytest.param(
        write("parallel: {context_parallel_size: 4, dynamic_context_parallel: true}",
              "{sequences: [64], cp: 3}"),
        write("parallel: {context_parallel_size: 3, dynamic_context_parallel: true}",
              "{sequences: [64], cp: 3}"),
        "3}",
        ("effective CP 3 does not divide the largest CP 4",),
        id="effective cp that fills no group",
    ),
    pytest.param(
        write("level: attention\nparallel: {context_parallel_size: 4, cp_ranks: [0]}"),
        write("level: scorer\nparallel: {context_parallel_size: 4, cp_ranks: [0]}"),
        "[0]}",
        ("level scorer only", "found level attention"),
        id="cp_ranks above scorer",
    ),
    pytest.param(
        write("level: scorer\nparallel: {context_parallel_size: 4, cp_ranks: [0, 4]}"),
        write("level: scorer\nparallel: {context_parallel_size: 5, cp_ranks: [0, 4]}"),
        "4]}",
        ("rank 4", "context_parallel_size 4"),
        id="cp_rank outside",
    ),
    pytest.param(
        write("parallel: {sequence_parallel: true}"),
        write("parallel: {sequence_parallel: true, tensor_model_parallel_size: 2}"),
        "true}",
        ("tensor_model_parallel_size above 1, found 1",),
        id="sequence parallel without tp",
    ),
    pytest.param(
        write("parallel: {sequence_parallel: true, tensor_model_parallel_size: 2}",
              "{sequences: [255]}"),
        write("parallel: {sequence_parallel: true, tensor_model_parallel_size: 2}",
              "{sequences: [255], tail_padding: 1}"),
        "[255]",
        ("255 rows per CP rank", "tensor_model_parallel_size 2"),
        id="rows not divisible by tp",
    ),
    pytest.param(
        write("level: scorer\nparallel: {tensor_model_parallel_size: 2}"),
        write("level: model\nparallel: {tensor_model_parallel_size: 2}"),
        "2}",
        ("no tensor parallelism, found 2",),
        id="tp at level scorer",
    ),
    pytest.param(
        write("parallel: {tensor_model_parallel_size: 3}").replace(
            "small", "{base: small, num_attention_heads: 64}"
        ),
        write("parallel: {tensor_model_parallel_size: 2}").replace(
            "small", "{base: small, num_attention_heads: 64}"
        ),
        "64}",
        ("64 attention heads", "tensor_model_parallel_size 3"),
        id="heads not divisible by tp",
    ),
    pytest.param(
        write("parallel: {context_parallel_size: 4, cp_comm_type: p2p}"),
        write("parallel: {context_parallel_size: 4, cp_comm_type: all_gather}"),
        "p2p",
        ("refuses cp_comm_type p2p",),
        id="cp_comm_type",
    ),
    pytest.param(
        write("kernels: {dsa_kernel_backend: tilelang, source: modelled}"),
        write("kernels: {dsa_kernel_backend: tilelang, source: hardware}"),
        "modelled",
        ("tilelang is never modelled",),
        id="tilelang modelled",
    ),
    pytest.param(
        write(CUDNN).replace("small", "{base: small, dsa_indexer_head_dim: 64}"),
        write("").replace("small", "{base: small, dsa_indexer_head_dim: 64}"),
        "64}",
        ("dsa_indexer_head_dim 128 only, found 64",),
        id="indexer head dim",
    ),
    pytest.param(
        write(CUDNN).replace("small", "{base: small, kv_lora_rank: 256}"),
        write(CUDNN + "\nlevel: scorer").replace("small", "{base: small, kv_lora_rank: 256}"),
        "256}",
        ("kv_lora_rank 512 only, found 256",),
        id="kv_lora_rank",
    ),
    pytest.param(
        write(CUDNN).replace("small", "{base: small, qk_pos_emb_head_dim: 32}"),
        write(CUDNN + "\nexpect: {verdict: wrong_path}").replace(
            "small", "{base: small, qk_pos_emb_head_dim: 32}"),
        "32}",
        ("qk_pos_emb_head_dim 64 only, found 32",),
        id="rope dim",
    ),
    pytest.param(
        write(CUDNN).replace("small", "{base: small, dsa_indexer_topk: 4096}"),
        write(CUDNN).replace("small", "{base: small, dsa_indexer_topk: 2048}"),
        "4096}",
        ("at most 2048", "found 4096"),
        id="topk",
    ),
    pytest.param(
        write(CUDNN).replace("small", "{base: small, dsa_indexer_scoring_relu: false}"),
        write(CUDNN).replace("small", "{base: small, dsa_indexer_scoring_relu: true}"),
        "false}",
        ("scores with relu only",),
        id="relu",
    ),
    pytest.param(
        write("").replace("small", "{base: small, dsa_indexer_head_dim: 32}"),
        write("").replace("small", "{base: small, dsa_indexer_head_dim: 64}"),
        "32}",
        ("dsa_indexer_head_dim 32 is below qk_pos_emb_head_dim 64",),
        id="indexer head below rope",
    ),
    pytest.param(
        write("schedule: [F0, F1]"),
        write("schedule: [F0]"),
        "F1]",
        ("F1 names microbatch 1, but there are 1",),
        id="schedule index",
    ),
    pytest.param(
        write("schedule: [F0, F0]"),
        write("schedule: [F0]"),
        "F0]",
        ("F0 is given twice",),
        id="schedule repeats",
    ),
    pytest.param(
        write("schedule: [F0, B0]"),
        write("schedule: [F0, B0]\ntraining: {backward: true}"),
        "B0]",
        ("B0 needs training.backward: true",),
        id="schedule backward",
    ),
    pytest.param(
        write("schedule: [B0, F0]\ntraining: {backward: true}"),
        write("schedule: [F0, B0]\ntraining: {backward: true}"),
        "B0, F0]",
        ("B0 stands before F0",),
        id="schedule order",
    ),
    pytest.param(
        write("schedule: [F0]\ntraining: {backward: true}"),
        write("schedule: [F0]\ntraining: {backward: false}"),
        "[F0]",
        ("B0 missing: 1 microbatches need 2 steps, found 1",),
        id="schedule misses",
    ),
    pytest.param(
        write("expect: {verdict: infrastructure}"),
        write("expect: {verdict: refused}"),
        "infrastructure",
        ("says nothing about a build",),
        id="expected infrastructure",
    ),
    pytest.param(
        write("known: [{when: {}, verdict: hang, link: 'https://x.y'}]"),
        write("known: [{when: {arch: sm90}, verdict: hang, link: 'https://x.y'}]"),
        "{}, verdict",
        ("an empty when is about every build",),
        id="known about everything",
    ),
    pytest.param(
        write("known: [{when: {arch: sm90}, verdict: pass, link: 'https://x.y'}]"),
        write("known: [{when: {arch: sm90}, verdict: crash, link: 'https://x.y'}]"),
        "pass,",
        ("pass is no defect",),
        id="known pass",
    ),
    pytest.param(
        write("known: [{when: {arch: sm90}, verdict: wrong_selection, link: 'https://x.y'}]"),
        write("known: [{when: {arch: sm90}, verdict: wrong_selection, as: chunk_local_window, "
              "link: 'https://x.y'}]"),
        "{when",
        ("wrong_selection needs as",),
        id="known selection without behaviour",
    ),
    pytest.param(
        write("known: [{when: {arch: sm90}, verdict: hang, link: 'https://x.y'}]\n"
              "expect: {verdict: hang}"),
        write("known: [{when: {arch: sm90}, verdict: hang, link: 'https://x.y'}]"),
        "hang, link",
        ("hang is what expect.verdict says as well",),
        id="known and expected",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "healthy", "token", "words"), ERRORS)
def test_a_broken_rule_is_an_error_at_its_place(load_text, broken, healthy, token, words):
    result = load_text(broken)
    assert len(result.problems) == 1, result.problems
    assert at(broken, result.problems[0]).startswith(token)
    for word in words:
        assert word in result.problems[0].message
    assert not result.ok
    assert load_text(healthy).ok


WARNINGS = [
    pytest.param(
        write("training: {recompute_num_layers: 2}"),
        write("training: {recompute_num_layers: 1}"),
        "2}",
        "read with recompute: full only",
        id="layers of no recomputation",
    ),
    pytest.param(
        write("kernels: {score_chunk_bytes: 1024}"),
        write("kernels: {score_chunk_bytes: 1024, dsa_kernel_backend: cudnn}"),
        "1024}",
        "score_chunk_bytes is ignored: backend none",
        id="score chunks of no backend",
    ),
    pytest.param(
        write("training: {dsa_indexer_use_sparse_loss: true}"),
        write("training: {dsa_indexer_use_sparse_loss: true, dsa_indexer_loss_coeff: 1}"),
        "true}",
        "ignored at dsa_indexer_loss_coeff 0",
        id="sparse loss of nothing",
    ),
    pytest.param(
        write("expect: {plan: packed_single}\n" + CP4, "{sequences: [64, 64]}"),
        write("expect: {plan: packed_thd}\n" + CP4, "{sequences: [64, 64]}"),
        "packed_single",
        "calls for packed_thd: 2 packed sequences",
        id="another plan",
    ),
    pytest.param(
        write("expect: {plan: packed_thd}", "{sequences: [64, 64], key_positions: explicit}"),
        write("expect: {plan: decline}", "{sequences: [64, 64], key_positions: explicit}"),
        "packed_thd",
        "calls for decline",
        id="plan of explicit positions",
    ),
]


@pytest.mark.parametrize(("odd", "healthy", "token", "words"), WARNINGS)
def test_a_warning_leaves_the_file_usable(load_text, odd, healthy, token, words):
    result = load_text(odd)
    (problem,) = result.problems
    assert at(odd, problem).startswith(token)
    assert problem.severity is Severity.WARNING
    assert words in problem.message
    assert ": warning: " in str(problem)
    assert result.ok
    assert len(result.scenarios) == 1
    assert load_text(healthy).problems == ()


def test_every_wrong_length_of_a_list_is_reported(load_text):
    text = write(CP4, "{sequences: [8, 8, 8, 8], padded: [8, 4, 8, 9]}")
    assert [at(text, p) for p in load_text(text).problems] == ["4, 8, 9]}]", "9]}]"]


def test_rules_name_only_keys_there_are():
    from harness.scenario.matrix_schema import LEAVES
    from harness.scenario.schema import ScenarioFile

    for rule in RULES:
        assert set(rule.needs) <= {*ScenarioFile.model_fields, *LEAVES}, rule


SCORER = "level: scorer\n"
RANKS = "parallel: {context_parallel_size: 4, cp_ranks: [0, 9], tensor_model_parallel_size: 2}"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        # The rule reads only what is sound, so it runs beside the mistake.
        (SCORER + RANKS.replace("}", ", foo: 1}"), ["rank 9", "tensor parallelism", "foo"]),
        (SCORER + RANKS.replace("}", ", sequence_parallel: 1}"), ["rank 9", "true or false"]),
        (SCORER + RANKS.replace("l_size: 2", "l_size: x"), ["rank 9", "whole number"]),
        (SCORER + RANKS + "\ntraining: 1", ["rank 9", "tensor parallelism", "a mapping"]),
        # It would read a default in place of what was meant, so it does not run.
        (SCORER + RANKS.replace("context_parallel", "context_paralel"), ["tensor", "mean context"]),
        (SCORER + RANKS.replace("context_parallel_size: 4", "cp_size: 4"), ["tensor", "mean con"]),
        (SCORER + RANKS.replace("parallel:", "paralel:"), ["mean parallel?"]),
        ("levl: scorer\n" + RANKS, ["mean level?"]),
        (SCORER + "context_parallel_size: 4\nparallel: {cp_ranks: [9]}", ["belongs at parallel."]),
        (
            SCORER + "parallel: {cp_ranks: [3]}\nmatrix: {parallel.context_parallel_size: [x]}",
            ["whole number"],
        ),
        (
            SCORER + "parallel: {cp_ranks: [3]}\nmatrix: {parallel.context_paralel_size: [4]}",
            ["mean parallel.context_parallel_size?"],
        ),
        (
            SCORER + "parallel: {cp_ranks: [3]}\n"
            "matrix: {parallel.context_parallel_size: [4], exclude: [{values.dtype: bf16}]}",
            ["leaves out nothing"],
        ),
        (
            SCORER + "parallel: {cp_ranks: [3]}\n"
            "matrix: {values.dtype: [bf8], include: [{parallel.context_parallel_size: 4}]}",
            ["found 'bf8'"],
        ),
    ],
)
def test_a_rule_runs_beside_other_mistakes_but_never_on_a_stand_in(load_text, extra, words):
    found = [problem.message for problem in load_text(write(extra)).problems]
    assert len(found) == len(words), found
    for word in words:
        assert any(word in message for message in found), found


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("{sequences: [8], foo: 1}", ["foo", "microbatches[1].padded[0]"]),
        ("{sequences: [8], padded: [x]}", ["whole number", "microbatches[1].padded[0]"]),
        # Padding meant for 9 is not judged against the default.
        ("{sequences: [9], padded: [9], tail_paddin: 8}", ["paddin", "microbatches[1].padded[0]"]),
        ("{sequences: [x]}", ["whole number", "microbatches[1].padded[0]"]),
        # An entry that is no mapping cannot be read, and indices would move without it.
        ("5", ["a mapping"]),
    ],
)
def test_a_faulty_microbatch_hides_no_mistake_in_another(load_text, first, words):
    text = write("", f"{first}, {{sequences: [8], padded: [7]}}")
    found = [problem.message for problem in load_text(text).problems]
    assert len(found) == len(words), found
    for word, message in zip(words, found, strict=True):
        assert word in message
