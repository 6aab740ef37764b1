"""Any valid scenario survives JSON, and survives being written as a scenario file and read back."""

import re
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.layout import padded_length
from harness.record.codec import dumps, loads
from harness.record.phase import Phase
from harness.record.verdict import Verdict
from harness.scenario import spec
from harness.scenario.dump import file_form, file_text
from harness.scenario.facts import FACTS
from harness.scenario.names import BEHAVIOURS, CUDNN_FRONTEND_RELEASES, DEFECTS, OVERLAYS

words = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True)
links = words.map("https://example.org/{}".format)
lines = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85"),
    min_size=1,
    max_size=30,
)  # no control characters, which YAML refuses
lines = lines.filter(lambda text: not re.search(r"[\x7f-\x9f]", text))
sizes = st.integers(1, 512)
floats = st.floats(1e-6, 1e6, allow_nan=False)


def some(*values):
    return st.sampled_from(values)


def tuples(items, **bounds):
    return st.lists(items, **bounds).map(tuple)


models = st.builds(
    spec.ModelSpec,
    name=lines,
    source=tuples(links, max_size=2),
    num_layers=sizes,
    hidden_size=sizes,
    num_attention_heads=sizes.map(lambda n: 4 * n),
    rotary_base=floats,
    layernorm_epsilon=floats,
    dsa_indexer_topk=sizes,
    dsa_indexer_topk_freq=sizes,
    dsa_indexer_skip_topk_offset=st.integers(0, 9),
    dsa_indexer_rope_interleaved=st.booleans(),
)
kernels = st.builds(
    spec.KernelsSpec,
    dsa_kernel_backend=some("none", "cudnn"),
    source=some("auto", "hardware", "modelled"),
    modelled=st.builds(
        spec.ModelledKernels,
        cudnn_frontend=some(*CUDNN_FRONTEND_RELEASES),
        arch=some("sm90", "sm100"),
        defects=some("as_released", "none")
        | tuples(some(*DEFECTS), min_size=1, max_size=3, unique=True),
    ),
    score_chunk_bytes=st.none() | sizes,
)


@st.composite
def microbatches(draw, cp_size: int):
    lengths = draw(st.lists(st.integers(0, 300), min_size=1, max_size=4))
    extra = draw(st.integers(0, 3)) * 2 * cp_size
    padded = tuple(padded_length(length, cp_size) + extra for length in lengths)
    keys = draw(
        st.none() | st.lists(st.integers(0, 99), min_size=len(lengths), max_size=len(lengths))
    )
    return spec.MicrobatchSpec(
        sequences=tuple(lengths),
        padded=draw(some("auto", padded)),
        kv_sequences=None if keys is None else tuple(keys),
        tail_padding=draw(st.integers(0, 3)) * cp_size,
        cp=draw(some(None, cp_size)),
        key_positions=draw(some("derived", "explicit")),
    )


facts = {name: some(*fact.values) for name, fact in FACTS.items()}
conditions = st.fixed_dictionaries(
    {"arch": some("sm90", "sm100")},
    optional={
        **facts,
        "cudnn_frontend": some(">=1.26", "<1.26", "==1.32.0"),
        "megatron_core": some(">=0.19"),
        "source": some("hardware", "modelled"),
        "overlays": tuples(some(*OVERLAYS), max_size=1),
    },
)
rules = st.builds(
    spec.KnownRule,
    when=conditions,
    verdict=some(Verdict.WRONG_SELECTION, Verdict.MEMORY_FAULT, Verdict.COMPILE_FAILED),
    behaviour=some(*BEHAVIOURS),
    phase=st.none() | some(*(str(phase) for phase in Phase)),
    kernel=st.none() | lines,
    exception=st.none() | lines,
    link=links,
)


@st.composite
def scenarios(draw):
    cp_size = draw(some(1, 2, 4))
    level = draw(some("scorer", "attention", "model"))
    packs = draw(st.lists(microbatches(cp_size), min_size=1, max_size=3))
    backward = draw(st.booleans())
    forward = [f"F{index}" for index in range(len(packs))]
    schedule = forward + ([f"B{index}" for index in range(len(packs))] if backward else [])
    ranks = (
        tuples(st.integers(0, cp_size - 1), min_size=1, unique=True)
        if level == "scorer"
        else st.nothing()
    )
    return spec.Scenario(
        id=draw(st.lists(words, min_size=1, max_size=3).map("/".join)),
        summary=draw(lines),
        source=draw(tuples(links, max_size=2)),
        tags=draw(tuples(words, max_size=3, unique=True)),
        model=draw(models),
        level=level,
        kernels=draw(kernels),
        overlays=draw(tuples(some(*OVERLAYS), max_size=1)),
        parallel=spec.ParallelSpec(
            context_parallel_size=cp_size,
            dynamic_context_parallel=draw(st.booleans()),
            cp_ranks=draw(some("all") | ranks),
        ),
        microbatches=tuple(packs),
        schedule=draw(some(None, tuple(schedule))),
        values=draw(
            st.builds(
                spec.ValuesSpec,
                seeds=tuples(st.integers(0, 2**32 - 1), min_size=1, max_size=3, unique=True),
                scores=some("normal", "ties", "integers", "underflow"),
                dtype=some("bf16", "fp32"),
            )
        ),
        training=draw(
            st.builds(
                spec.TrainingSpec,
                backward=st.just(backward),
                dsa_indexer_loss_coeff=st.floats(0, 10),
                dsa_indexer_use_sparse_loss=st.booleans(),
                calculate_per_token_loss=st.booleans(),
                # Only a backward of layers has something to compute again.
                recompute=some("none", "selective", "full")
                if backward and level != "scorer"
                else st.just("none"),
            )
        ),
        graph=draw(
            st.builds(
                spec.GraphSpec,
                cuda_graph_impl=some("none", "local", "full_iteration"),
                cuda_graph_modules=tuples(some("attn", "mlp"), unique=True),
                replays=sizes,
            )
        ),
        reference=draw(
            st.builds(spec.ReferenceSpec, rows=some("all") | sizes, dtype=some("fp32", "fp64"))
        ),
        expect=draw(
            st.builds(
                spec.ExpectSpec,
                verdict=some(Verdict.PASS, Verdict.REFUSED),
                plan=some(None, "packed_single", "decline"),
                # At level scorer there are no layers to count for.
                layout_builds_per_microbatch=st.none()
                | (st.integers(0, 3) if level != "scorer" else st.nothing()),
                kernel_calls=st.dictionaries(words, st.integers(0, 9), max_size=2),
            )
        ),
        known=draw(tuples(rules, max_size=2)),
        published=draw(
            tuples(st.builds(spec.Published, what=lines, value=lines, link=links), max_size=2)
        ),
        limits=draw(st.builds(spec.LimitsSpec, time_s=st.floats(0.1, 86400))),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenario=scenarios())
def test_json_and_back(scenario):
    text = dumps(scenario)
    again = loads(spec.Scenario, text)
    assert again == scenario
    assert dumps(again) == text
    assert again.content_hash == scenario.content_hash


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scenario=scenarios())
def test_scenario_file_and_back(load_text, scenario):
    result = load_text(file_text(scenario))
    assert result.ok, result.problems
    assert [loaded.scenario for loaded in result.scenarios] == [scenario]


def test_an_expanded_name_becomes_a_plain_one(load_text, minimal):
    result = load_text(minimal + "matrix: {parallel.context_parallel_size: [4]}\n")
    form = file_form(result.scenarios[0].scenario)
    assert form["id"] == "case/minimal-cp4"
    assert form["parallel"] == {"context_parallel_size": 4}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenario=scenarios(), summary=lines, published=tuples(links, max_size=2), seed=sizes)
def test_what_is_said_of_a_scenario_is_no_content(scenario, summary, published, seed):
    figures = tuple(spec.Published(what="overlap", value="1", link=link) for link in published)
    said = replace(
        scenario,
        summary=summary,
        source=(),
        tags=("other",),
        expect=spec.ExpectSpec(),
        known=(),
        published=figures,
    )
    assert said.content_hash == scenario.content_hash
    other = replace(scenario, values=replace(scenario.values, seeds=(2**32 + seed,)))
    assert other.content_hash != scenario.content_hash
