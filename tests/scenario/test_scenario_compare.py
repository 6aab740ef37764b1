"""Rules over ``compare``, masks and values of known rules; each with a healthy twin."""

import pytest

from harness.scenario.spec import CompareSpec


def write(extra: str, sequences: str = "{sequences: [64, 32]}") -> str:
    return (
        f"id: case/rule\nsummary: One rule.\nmodel: small\nmicrobatches: [{sequences}]\n{extra}\n"
    )


CP4 = "parallel: {context_parallel_size: 4}\n"
BACKWARD = "training: {backward: true}\n"
WHEN = "known: [{when: {megatron_core: '>=0.19'}, link: 'https://example.org/1', "

ERRORS = [
    pytest.param(
        write(CP4 + "level: scorer\ncompare: {context_parallel_size: [1]}"),
        write(CP4 + "level: attention\ncompare: {context_parallel_size: [1]}"),
        "level scorer runs nothing again",
        id="level",
    ),
    pytest.param(
        write(CP4 + "compare: {context_parallel_size: [4]}"),
        write(CP4 + "compare: {context_parallel_size: [2]}"),
        "CP 4 is the scenario's own size",
        id="own size",
    ),
    pytest.param(
        write(CP4 + "level: model\ncompare: {effective_cp: [1]}"),
        write(CP4 + "level: attention\ncompare: {effective_cp: [1]}"),
        "the group of a whole model is the build's to set",
        id="effective CP of a model",
    ),
    pytest.param(
        write(CP4 + "compare: {effective_cp: [4]}"),
        write(CP4 + "compare: {effective_cp: [1, 2]}"),
        "CP 4 is the scenario's own size",
        id="effective CP of the own size",
    ),
    pytest.param(
        write(
            "parallel: {context_parallel_size: 2, tensor_model_parallel_size: 2}\n"
            "compare: {effective_cp: [1]}"
        ),
        write("parallel: {context_parallel_size: 2}\ncompare: {effective_cp: [1]}"),
        "parts of the group are made for tensor_model_parallel_size 1",
        id="effective CP and tensor parallelism",
    ),
    pytest.param(
        write(CP4 + "compare: {context_parallel_size: [3]}"),
        write(CP4 + "compare: {context_parallel_size: [1, 2]}"),
        "CP 3 does not divide the 4 ranks",
        id="divisor",
    ),
    pytest.param(
        write(
            "parallel: {context_parallel_size: 1, tensor_model_parallel_size: 2}\n"
            "compare: {context_parallel_size: [2]}"
        ),
        write(
            "parallel: {context_parallel_size: 2, tensor_model_parallel_size: 2}\n"
            "compare: {context_parallel_size: [1]}"
        ),
        "CP 2 does not divide the 1 ranks",
        id="ranks of tensor parallelism",
    ),
    pytest.param(
        write(
            "parallel: {context_parallel_size: 4, dynamic_context_parallel: true}\n"
            "compare: {context_parallel_size: [2]}"
        ),
        write(CP4 + "compare: {context_parallel_size: [2]}"),
        "comparing CP sizes needs one CP size",
        id="dynamic CP",
    ),
    pytest.param(
        write(BACKWARD + "values: {dtype: fp32}\ncompare: {dtype: fp32}"),
        write(BACKWARD + "values: {dtype: bf16}\ncompare: {dtype: fp32}"),
        "values.dtype is fp32 already",
        id="dtype",
    ),
    pytest.param(
        write(BACKWARD + "kernels: {dsa_kernel_backend: cudnn}\ncompare: {dtype: fp32}"),
        write(BACKWARD + "kernels: {dsa_kernel_backend: none}\ncompare: {dtype: fp32}"),
        "kernels of backend cudnn take bf16 only",
        id="dtype of kernels",
    ),
    pytest.param(
        write("compare: {dtype: fp32}"),
        write(BACKWARD + "compare: {dtype: fp32}"),
        "values are judged with training.backward: true only",
        id="dtype without backward",
    ),
    pytest.param(
        write("", "{sequences: [64, 64], qkv_format: sbhd, real_token_mask_q: true}"),
        write("", "{sequences: [64, 64], qkv_format: thd, real_token_mask_q: true}"),
        "the mask goes with packed sequences",
        id="mask of a batch",
    ),
    pytest.param(
        write(WHEN + "verdict: crash, values: [logged_loss]}]"),
        write(WHEN + "verdict: wrong_value, values: [logged_loss]}]"),
        "values names values that are wrong, found verdict crash",
        id="values of a crash",
    ),
]


@pytest.mark.parametrize(("broken", "healthy", "words"), ERRORS)
def test_a_broken_rule_is_an_error(load_text, broken, healthy, words):
    result = load_text(broken)
    assert any(words in problem.message for problem in result.problems), result.problems
    assert not result.ok
    assert load_text(healthy).ok, load_text(healthy).problems


def test_sizes_that_cannot_cut_the_padded_lengths_are_reported(load_text):
    text = write(
        "parallel: {context_parallel_size: 1, tensor_model_parallel_size: 1}\n",
        "{sequences: [62]}",
    )
    assert load_text(text).ok
    # CP 2 of two ranks would need 64; the pack of CP 1 keeps 62, but there is one rank only.
    again = load_text(write("compare: {context_parallel_size: [2]}", "{sequences: [62]}"))
    assert "CP 2 does not divide the 1 ranks" in again.problems[0].message


def test_compare_may_be_an_axis(load_text):
    text = write(CP4 + "matrix: {compare.context_parallel_size: [[1], [1, 2]]}")
    result = load_text(text)
    assert result.ok, result.problems
    assert [loaded.scenario.compare for loaded in result.scenarios] == [
        CompareSpec(context_parallel_size=(1,)),
        CompareSpec(context_parallel_size=(1, 2)),
    ]
