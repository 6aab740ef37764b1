import re

import pytest

from harness.scenario.matrix import MAX_COMBINATIONS, MAX_LABEL, label
from harness.scenario.matrix_schema import LEAVES


def with_matrix(minimal: str, matrix: str) -> str:
    return minimal + f"matrix:\n{matrix}\n"


def ids(result) -> list[str]:
    assert result.problems == ()
    return [loaded.scenario.id for loaded in result.scenarios]


def test_combinations_are_named_in_the_order_of_the_file(load_text, minimal):
    result = load_text(
        with_matrix(
            minimal,
            '  kernels.modelled.cudnn_frontend: ["1.25.0", "1.32.0"]\n'
            "  parallel.context_parallel_size: [4, 2]",
        )
    )
    assert ids(result) == [
        "case/minimal[cudnn1.25.0-cp4]",
        "case/minimal[cudnn1.25.0-cp2]",
        "case/minimal[cudnn1.32.0-cp4]",
        "case/minimal[cudnn1.32.0-cp2]",
    ]
    last = result.scenarios[-1].scenario
    assert last.kernels.modelled.cudnn_frontend == "1.32.0"
    assert last.kernels.modelled.arch == "sm100"
    assert last.parallel.context_parallel_size == 2
    assert {loaded.family for loaded in result.scenarios} == {"case/minimal"}
    assert len({loaded.scenario.content_hash for loaded in result.scenarios}) == 4


def test_a_new_value_renames_nothing(load_text, minimal):
    few = ids(load_text(with_matrix(minimal, "  values.seeds: [[0, 1], [2]]")))
    more = ids(load_text(with_matrix(minimal, "  values.seeds: [[5], [0, 1], [2]]")))
    assert set(few) < set(more)


def test_whole_sections_and_their_fields_can_both_vary(load_text, minimal):
    result = load_text(
        with_matrix(
            minimal,
            "  model.num_layers: [1, 2]\n  model: [glm5_2, small]\n  level: [model]\n"
            "  microbatches: [[{sequences: [8, 8]}, {sequences: [16]}]]",
        )
    )
    assert ids(result)[0] == "case/minimal[layers1-glm5_2-model-8+8_16]"
    models = [loaded.scenario.model for loaded in result.scenarios]
    assert [(m.name, m.num_layers, m.hidden_size) for m in models] == [
        ("glm5_2+", 1, 6144),
        ("small+", 1, 256),
        ("glm5_2+", 2, 6144),
        ("small", 2, 256),
    ]
    assert len(result.scenarios[0].scenario.microbatches) == 2


def test_include_and_exclude(load_text, minimal):
    result = load_text(
        with_matrix(
            minimal,
            "  parallel.context_parallel_size: [1, 2, 4]\n"
            "  values.dtype: [bf16, fp32]\n"
            "  exclude: [{parallel.context_parallel_size: 4, values.dtype: fp32}, "
            "{parallel.context_parallel_size: 1}]\n"
            "  include: [{training.backward: true, parallel.context_parallel_size: 8}]",
        )
    )
    assert ids(result) == [
        "case/minimal[cp2-bf16]",
        "case/minimal[cp2-fp32]",
        "case/minimal[cp4-bf16]",
        "case/minimal[backward-cp8]",
    ]


@pytest.mark.parametrize(
    ("matrix", "place", "words"),
    [
        ("  parallel.context_parallel_size: [1, '2']", (7, 39), "[1]: expected a whole number"),
        ("  parallel.context_parallel_size: [0]", (7, 36), "at least 1, found 0"),
        ("  parallel.context_parallel_size: 4", (7, 35), "expected a list, found 4"),
        ("  parallel.context_parallel_size:", (7, 34), "expected a list, found nothing"),
        ("  parallel.context_parallel_size: []", (7, 35), "found an empty list"),
        ("  parallel.context_parallel_size: [2, 2]", (7, 35), "entry 2 repeats entry 1"),
        ("  parallel.context_paralel_size: [2]", (7, 3), "did you mean parallel.context_parallel"),
        ("  parallel: {context_parallel_size: [2]}", (7, 3), "matrix.parallel: unknown key"),
        ("  summary: [x]", (7, 3), "matrix.summary: unknown key"),
        ('  kernels.modelled.cudnn_frontend: ["1.33.0"]', (7, 37), "named '1.33.0'"),
        ("  model: [smal]", (7, 11), "no model named 'smal'"),
        ("  microbatches: [[{sequences: [8]}, {sequence: [8]}]]", (7, 38), "mean sequences?"),
        ("  exclude: [{values.dtype: fp32}]", (7, 3), "leaves no combination"),
        ("  values.dtype: [bf16]\n  exclude: [{values.dtype: fp32}]", (8, 13), "out nothing"),
        ("  values.dtype: [bf16]\n  exclude: [{values.dtype: bf16}]", (7, 3), "no combination"),
        (
            f"  values.seeds: [{', '.join(f'[{n}]' for n in range(MAX_COMBINATIONS + 1))}]",
            (7, 3),
            f"expands to {MAX_COMBINATIONS + 1} scenarios",
        ),
        (
            "  values.dtype: [bf16]\n  include: [{values.dtype: bf16}]",
            (7, 3),
            "two combinations are named 'case/minimal[bf16]'",
        ),
    ],
)
def test_mistakes_in_a_matrix(load_text, minimal, matrix, place, words):
    result = load_text(with_matrix(minimal, matrix))
    assert len(result.problems) == 1, result.problems
    (problem,) = result.problems
    assert words in problem.message
    assert problem.line == place[0]
    assert (problem.line, problem.column) == place
    assert result.scenarios == ()


def test_a_rule_broken_by_one_value_points_at_that_value(load_text, minimal):
    text = minimal.replace("[256]", "[256]\n    padded: [264]")
    result = load_text(with_matrix(text, "  parallel.context_parallel_size: [2, 4, 16]"))
    (problem,) = result.problems
    assert (problem.line, problem.column) == (6, 14)
    assert "264 is not a multiple of 2 * cp_size = 32" in problem.message

    result = load_text(
        with_matrix(
            minimal.replace("model: small", "model: small\nkernels: {dsa_kernel_backend: cudnn}"),
            "  model.dsa_indexer_topk: [16, 2049]",
        )
    )
    (problem,) = result.problems
    assert (problem.line, problem.column) == (8, 32)


def test_a_bad_matrix_hides_no_other_mistake(load_text, minimal):
    result = load_text(with_matrix(minimal + "foo: 1\n", "  bar: [1]"))
    assert [problem.message.split(":")[0] for problem in result.problems] == ["foo", "matrix.bar"]


@pytest.mark.parametrize(
    ("alias", "value", "text"),
    [
        ("parallel.context_parallel_size", 4, "cp4"),
        ("parallel.sequence_parallel", True, "sequence_parallel"),
        ("parallel.sequence_parallel", False, "no_sequence_parallel"),
        ("training.dsa_indexer_loss_coeff", 0.01, "dsa_indexer_loss_coeff-0.01"),
        ("training.recompute", "full", "recompute-full"),
        ("kernels.score_chunk_bytes", None, "chunknone"),
        ("overlays", [], "overlays-none"),
        ("overlays", ["causal_offsets"], "overlays-causal_offsets"),
        ("parallel.cp_ranks", [0, 15, 31], "cp_ranks-0+15+31"),
        ("parallel.cp_ranks", "all", "cp_ranks-all"),
        ("microbatches", [{"sequences": [8, 4]}, {"sequences": [16], "cp": 2}], "8+4_16@cp2"),
    ],
)
def test_labels_can_be_typed(alias, value, text):
    assert label(alias, value) == text
    assert re.fullmatch(r"[A-Za-z0-9._+@-]+", text)


def test_a_long_label_is_cut_and_stays_distinct():
    one = label("microbatches", [{"sequences": [4096] * 40}])
    two = label("microbatches", [{"sequences": [4096] * 41}])
    assert len(one) <= MAX_LABEL
    assert one != two


def test_equal_labels_of_one_axis_get_a_hash(load_text, minimal):
    matrix = (
        "  microbatches: [[{sequences: [8]}], [{sequences: [8], padded: [16]}], [{sequences: [4]}]]"
    )
    found = ids(load_text(with_matrix(minimal, matrix)))
    assert len(set(found)) == 3
    assert re.fullmatch(r"case/minimal\[8\.[0-9a-f]{6}\]", found[0])
    assert found[2] == "case/minimal[4]"


def test_leaves_cover_every_field_of_a_section():
    assert LEAVES["kernels.modelled.defects"] == ("kernels", "modelled", "defects")
    assert not {"id", "summary", "source", "tags", "known", "matrix", "model.source"} & set(LEAVES)
    assert len(LEAVES) > 45
