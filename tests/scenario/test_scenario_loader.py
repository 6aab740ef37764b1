import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.scenario.loader import load
from harness.scenario.yaml12 import MAX_BYTES

EIGHT_MISTAKES = """\
id: case/eight
summary: Eight mistakes, one of them across fields.
model: smal
level: attentoin
kernels:
  dsa_kernel_backend: cudnn
  modelled: {cudnn_frontend: 1.32}
parallel:
  context_parallel_size: 4
  cp_rank: all
microbatches:
  - sequences: [128, 64]
    padded: [128, 60]
values: {seeds: [0, 0]}
known:
  - when: {cudnn_frontend: "1.26 or later"}
    verdict: wrong_selection
    as: chunk_local_window
    link: nowhere
"""


def test_eight_mistakes_are_reported_in_one_go(load_text):
    result = load_text(EIGHT_MISTAKES)
    file = result.problems[0].file
    assert [str(problem).removeprefix(file + ":") for problem in result.problems] == [
        "3:8: model: no model named 'smal' in models/; did you mean small?; there are: "
        "deepseek_v3_2, glm5_2, small",
        "4:8: level: expected one of scorer, attention, model, kernel, found 'attentoin'; did you "
        "mean attention?",
        "7:30: kernels.modelled.cudnn_frontend: expected text, found 1.32; put it in quotes",
        "10:3: parallel.cp_rank: unknown key; did you mean cp_ranks?",
        "13:19: microbatches[0].padded[1]: sequence 1: padded length 60 is shorter than its real "
        "length 64; raise padded[1] to 64, or use padded: auto",
        "14:17: values.seeds: entry 2 repeats entry 1; give it once",
        "16:28: known[0].when.cudnn_frontend: '1.26 or later' is no version specifier; write such "
        "as '>=1.26' or '>=1.24,<1.26'",
        "19:11: known[0].link: expected a link that starts with http:// or https://, found "
        "'nowhere'",
    ]
    assert len(result.problems) == 8
    assert result.scenarios == ()
    assert not result.ok


def test_the_healthy_twin_loads(load_text, minimal):
    result = load_text(minimal)
    assert result.problems == ()
    (loaded,) = result.scenarios
    assert (loaded.scenario.id, loaded.line, loaded.family) == ("case/minimal", 1, "case/minimal")
    assert loaded.scenario.microbatches[0].sequences == (256,)
    assert loaded.scenario.model.name == "small"


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("id: case/minimal\n", "", (1, 1), "id: missing key"),
        ("summary: A minimal scenario.\n", "", (1, 1), "summary: missing key"),
        ("model: small\n", "", (1, 1), "model: missing key"),
        (
            "  - sequences: [256]\n",
            "  - {cp: 1}\n",
            (5, 5),
            "microbatches[0].sequences: missing key",
        ),
        ("id: case/minimal", "id: case minimal", (1, 5), "id: expected words of letters"),
        ("id: case/minimal", "id: 12", (1, 5), "id: expected text, found 12; put it in quotes"),
        ("[256]", "[]", (5, 16), "expected at least 1, found an empty list"),
        ("[256]", "256", (5, 16), "microbatches[0].sequences: expected a list, found 256"),
        ("[256]", "[2.5]", (5, 17), "expected a whole number, found 2.5"),
        ("[256]", "['256']", (5, 17), "found '256'; write it without quotes"),
        ("[256]", "[-1]", (5, 17), "expected at least 0, found -1"),
        ("[256]", "[2147483648]", (5, 17), "expected at most 2147483647"),
        ("[256]", "[true]", (5, 17), "expected a whole number, found true"),
        ("[256]", "[256]\n    padded: 256", (6, 13), "expected auto or a list, found 256"),
        ("[256]", "[256]\n    paded: auto", (6, 5), "unknown key; did you mean padded?"),
        ("model: small", "model: {base: small, num_layer: 2}", (3, 22), "did you mean num_layers?"),
        ("model: small", "model: [small]", (3, 8), "model: expected text, found a list of 1"),
        ("model: small", "model: {base: smal}", (3, 15), "model.base: no model named 'smal'"),
    ],
)
def test_each_mistake_has_its_place_and_words(load_text, minimal, old, new, place, words):
    assert old in minimal
    result = load_text(minimal.replace(old, new))
    assert [(p.line, p.column) for p in result.problems] == [place], result.problems
    assert words in result.problems[0].message
    assert result.scenarios == ()


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("level:", (4, 7), "found nothing"),
        ("kernels:", (4, 9), "kernels: expected a mapping"),
        ("training: {backward: yes}", (4, 22), "true and false only"),
        ("limits: {time_s: .inf}", (4, 18), "limits.time_s: "),
        ("limits: {time_s: 0}", (4, 18), "expected above 0"),
        ("reference: {rows: some}", (4, 19), "all or a number"),
        ("reference: {rows: 0}", (4, 19), "at least 1, found 0"),
        ("overlays: [causal]", (4, 12), "no overlay named 'causal'"),
        ("schedule: [F0, X1]", (4, 16), "F or B and the index"),
        ("cp_size: 2", (4, 1), "unknown key"),
        ("context_parallel_size: 2", (4, 1), "it belongs at parallel."),
        ("parallel.context_parallel_size: 2", (4, 1), "below parallel"),
        ("graph: {cuda_graph_scope: [attn]}", (4, 9), "cuda_graph_modules"),
        ("expect: {verdict: passed}", (4, 19), "did you mean pass?"),
        ("expect: {kernel_calls: {a b: 1}}", (4, 25), "kernel_calls"),
        (
            "kernels: {modelled: {defects: [d447]}}",
            (4, 32),
            "no defect named 'd447'; did you mean d446?",
        ),
        (
            "kernels: {modelled: {cudnn_frontend: '1.26'}}",
            (4, 38),
            "no modelled cudnn-frontend release named '1.26'; did you mean 1.26.0?",
        ),
        (
            "known: [{when: {pases_causal_offsets: true}, verdict: hang, link: 'https://x'}]",
            (4, 17),
            "did you mean passes_causal_offsets?",
        ),
        (
            "known: [{when: {arch: sm100}, verdict: hang, behaviour: x, link: 'https://x'}]",
            (4, 46),
            "did you mean as?",
        ),
        (
            "published: [{what: overlap, valeu: '1.0', link: 'https://x'}]",
            (4, 29),
            "did you mean value?",
        ),
        (
            "published: [{what: overlap, value: 0.25, link: 'https://x'}]",
            (4, 36),
            "published[0].value: expected text, found 0.25; put it in quotes",
        ),
        ("published: [{what: overlap, value: '1'}]", (4, 13), "published[0].link: missing key"),
    ],
)
def test_each_mistake_in_a_further_key_has_its_place_and_words(
    load_text, minimal, line, place, words
):
    result = load_text(minimal.replace("model: small", f"model: small\n{line}"))
    assert [(p.line, p.column) for p in result.problems] == [place], result.problems
    assert words in result.problems[0].message
    assert result.scenarios == ()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "expected a mapping with the keys id, summary, model, microbatches"),
        (b"- a\n", "expected a mapping with the keys"),
        (b"just text", "expected a mapping with the keys"),
        (b"id: \xff\n", "byte 0xff is not UTF-8"),
        ("id: x\n".encode("utf-16"), "is not UTF-8"),
        (b"a: " + b"x" * MAX_BYTES, "larger than"),
    ],
)
def test_files_that_hold_no_scenario(load_text, raw, words):
    (problem,) = load_text(raw).problems
    assert words in problem.message


def test_a_byte_order_mark_is_no_mistake(load_text, minimal):
    assert load_text("\ufeff" + minimal).ok


def test_paths_that_lead_nowhere_are_all_reported(tmp_path):
    (tmp_path / "empty").mkdir()
    fifo = tmp_path / "pipe.yaml"
    os.mkfifo(fifo)
    result = load([tmp_path / "none.yaml", tmp_path / "empty", fifo, "x" * 5000])
    assert [problem.message.split(";")[0] for problem in result.problems] == [
        "no such file or folder",
        "no scenario file (*.yaml) in this folder or below it",
        "not a regular file",
        "cannot be read: File name too long",
    ]
    assert all(problem.line == 0 for problem in result.problems)
    assert str(result.problems[0]).startswith(f"{tmp_path}/none.yaml: no such")


def test_an_unreadable_file_is_reported(tmp_path, minimal, monkeypatch):
    path = tmp_path / "case.yaml"
    path.write_text(minimal)

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    (problem,) = load([path]).problems
    assert problem.message == "cannot be read: Permission denied"


def test_an_odd_file_name_can_be_printed(tmp_path, minimal):
    path = os.fsencode(tmp_path) + b"/\xff.yaml"
    with open(path, "wb") as stream:
        stream.write(minimal.replace("small", "smal").encode())
    (problem,) = load([tmp_path]).problems
    str(problem).encode("utf-8")


def test_folders_are_searched_and_files_are_read_once(tmp_path, minimal):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b" / "one.yaml").write_text(minimal)
    (tmp_path / ".hidden" / "two.yaml").write_text("broken: [")
    (tmp_path / "notes.txt").write_text("no scenario")
    result = load([tmp_path, tmp_path / "b" / "one.yaml", tmp_path / "b" / ".." / "b"])
    assert result.ok
    assert (result.num_files, len(result.scenarios)) == (1, 1)


def test_an_id_used_twice_is_an_error_in_both_files(tmp_path, minimal):
    (tmp_path / "a.yaml").write_text(minimal)
    (tmp_path / "b.yaml").write_text(minimal + "foo: 1\n")
    (tmp_path / "c.yaml").write_text(minimal.replace("case/minimal", "case/other"))
    result = load([tmp_path])
    about_id = [p for p in result.problems if "is also the id of" in p.message]
    assert [(Path(p.file).name, p.line, p.column) for p in about_id] == [
        ("a.yaml", 1, 5),
        ("b.yaml", 1, 5),
    ]
    assert "b.yaml" in about_id[0].message
    assert "a.yaml" in about_id[1].message


def test_a_file_without_errors_is_usable_beside_a_bad_one(tmp_path, minimal):
    (tmp_path / "a.yaml").write_text(minimal)
    (tmp_path / "b.yaml").write_text("id: [")
    result = load([tmp_path])
    assert not result.ok
    assert [x.scenario.id for x in result.scenarios] == ["case/minimal"]


def test_errors_of_a_model_file_stand_in_that_file(tmp_path, minimal):
    models = tmp_path / "models"
    models.mkdir()
    (models / "small.yaml").write_text("num_layers: 2\nhiden_size: 4\n")
    path = tmp_path / "a.yaml"
    path.write_text(minimal)
    result = load([path], models_dir=models)
    assert [(Path(p.file).name, p.line, p.column) for p in result.problems] == [
        ("a.yaml", 3, 8),
        ("small.yaml", 2, 1),
    ]
    assert "did you mean hidden_size?" in result.problems[1].message


@pytest.mark.parametrize(
    ("model", "name", "layers", "hidden_size"),
    [
        ("small", "small", 2, 256),
        ("{base: small}", "small", 2, 256),
        ("{base: small, num_layers: 2}", "small", 2, 256),
        ("{base: small, num_layers: 3}", "small+", 3, 256),
        ("{base: small, name: mine, num_layers: 3}", "mine", 3, 256),
        ("{hidden_size: 8}", "inline", 1, 8),
    ],
)
def test_a_model_can_be_named_or_given_or_changed(
    load_text, minimal, model, name, layers, hidden_size
):
    result = load_text(minimal.replace("model: small", f"model: {model}"))
    assert result.problems == ()
    found = result.scenarios[0].scenario.model
    assert (found.name, found.num_layers, found.hidden_size) == (name, layers, hidden_size)


QUIET = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUIET
@given(raw=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_raise(load_text, raw):
    assert not load_text(raw).ok


SCALARS = st.sampled_from(
    ["0", "-1", "1.5", "true", "null", "auto", "[]", "{}", "[1]", "[[1]]", "{a: 1}", "'x'", "F0"]
)


@QUIET
@given(data=st.data())
def test_no_wrong_value_raises(load_text, minimal, data):
    """Replace the value of any key by anything; what is wrong is reported, never raised."""
    keys = [
        "id", "summary", "source", "tags", "model", "level", "kernels", "overlays", "parallel",
        "microbatches", "schedule", "values", "training", "graph", "reference", "matrix", "expect",
        "known", "published", "limits",
    ]  # fmt: skip
    chosen = data.draw(st.dictionaries(st.sampled_from(keys), SCALARS, max_size=5))
    kept = [line for line in minimal.splitlines() if line.split(":")[0] not in chosen]
    if "microbatches" in chosen:
        kept = [line for line in kept if not line.startswith("  ")]
    load_text("\n".join(kept + [f"{key}: {value}" for key, value in chosen.items()]))


def test_a_message_shows_what_a_file_hides(load_text):
    text = 'id: a/b\nsummary: x\nmodel: "small\\x1b[31m\\nx\\u202e"\n'
    text += "microbatches: [{sequences: [8]}]\n"
    lines = [str(problem) for problem in load_text(text).problems]
    assert lines
    for line in lines:
        assert "\n" not in line
        assert "\x1b" not in line
        assert "\u202e" not in line
