"""docs/scenarios.md and docs/kernels.md: every example is tried, every key and name is there."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from harness.scenario import call_sections, known, names, search_sections, sections
from harness.scenario.collection import MAX_DEPTH
from harness.scenario.files import PROJECT_ROOT
from harness.scenario.loader import LoadResult, load
from harness.scenario.matrix import MAX_COMBINATIONS
from harness.scenario.schema import ScenarioFile
from harness.scenario.suite_schema import SuiteFile
from harness.scenario.yaml12 import parse

DOCS = PROJECT_ROOT / "docs"
SCENARIOS = (DOCS / "scenarios.md").read_text(encoding="utf-8")
KERNELS = (DOCS / "kernels.md").read_text(encoding="utf-8")

BASE = """\
id: docs/base
summary: What a fragment is put into.
model: small
parallel: {context_parallel_size: 4}
microbatches: [{sequences: [128, 64]}]
"""
EXAMPLES = [
    *re.findall(r"^```yaml\n(.*?)^```", SCENARIOS, re.DOTALL | re.MULTILINE),
    *re.findall(r"^```yaml\n(.*?)^```", KERNELS, re.DOTALL | re.MULTILINE),
]
MISTAKES = re.findall(
    r"^```yaml wrong\n(.*?)^```\n\n```text\n(.*?)^```", SCENARIOS, re.DOTALL | re.MULTILINE
)
MODELS: dict[str, type[BaseModel]] = {
    "Top level": ScenarioFile,
    "`model`": sections.ModelMapping,
    "`kernels`": sections.Kernels,
    "`kernels.modelled`": sections.Modelled,
    "`kernels.third_party_hook`": call_sections.ThirdPartyHook,
    "`parallel`": sections.Parallel,
    "`microbatches`": sections.Microbatch,
    "`values`": sections.Values,
    "`training`": sections.Training,
    "`graph`": sections.Graph,
    "`kernel_call`": call_sections.KernelCall,
    "`kernel_call.edits`": call_sections.SlotEdit,
    "`perturb`": call_sections.Perturb,
    "`reference`": sections.Reference,
    "`expect`": sections.Expect,
    "`limits`": sections.Limits,
    "`search`": search_sections.Search,
    "Known": sections.Known,
    "Conditions": sections.When,
    "Published": sections.Published,
    "Suites": SuiteFile,
}


def keys_of(text: str) -> set[str]:
    document, problems = parse(text, "example")
    assert problems == ()
    return set(document.data)


def load_example(text: str, folder: Path) -> LoadResult:
    """Load an example as it is, or put the keys of a fragment into a whole scenario."""
    keys = keys_of(text)
    if not keys & {"id", "suite"}:
        kept = [line for line in BASE.splitlines() if line.split(":")[0] not in keys]
        text = "\n".join([*kept, text])
    (folder / "case.yaml").write_text(text)
    return load(["case.yaml"])


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0][:30])
def test_examples_load(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = load_example(text, tmp_path)
    assert result.problems == ()
    assert result.scenarios


def test_there_are_examples_of_all_kinds():
    keys = [keys_of(text) for text in EXAMPLES]
    for key in ("id", "suite", "matrix", "known", "published", "kernels"):
        assert any(key in found for found in keys)
    assert len(MISTAKES) == 2


@pytest.mark.parametrize(("text", "messages"), MISTAKES, ids=["scenario", "suite"])
def test_mistakes_give_the_messages_shown(text, messages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.yaml").write_text(text)
    found = [
        str(problem).replace(str(PROJECT_ROOT), "/project")
        for problem in load(["case.yaml"]).problems
    ]
    assert found == messages.splitlines()


def test_the_matrix_example_makes_the_names_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = [text for text in EXAMPLES if keys_of(text) == {"matrix"}]
    part = SCENARIOS[SCENARIOS.index("This makes") :]
    shown = re.findall(r"`id(\[.*?\])`", part[: part.index("\n\n")])
    result = load_example(text, tmp_path)
    assert [x.scenario.id.removeprefix("docs/base") for x in result.scenarios] == shown


def rows_of(title: str) -> dict[str, str]:
    """Keys and defaults of the first table below a heading."""
    part = re.split(rf"^##+ {re.escape(title)}\n", SCENARIOS, maxsplit=1, flags=re.MULTILINE)[1]
    table = part[part.index("| key |") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0].strip("`"): row[1].strip("`") for row in cells}


def default_text(field) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "section"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("'", "")


@pytest.mark.parametrize("title", MODELS)
def test_tables_hold_every_key_with_its_default(title):
    fields = MODELS[title].model_fields
    due = {field.alias or name: default_text(field) for name, field in fields.items()}
    assert rows_of(title) == due


@pytest.mark.parametrize(
    "name",
    [
        *(*names.OVERLAYS, *names.BEHAVIOURS, *known.FACTS),
        *(*names.BOUNDARIES, *names.THIRD_PARTY_HOOKS, *names.HOOK_SIGNATURES),
    ],
)
def test_names_of_closed_sets_are_explained(name):
    assert f"`{name}`" in SCENARIOS


def test_bounds_are_those_of_the_code():
    assert f"A file may have {MAX_COMBINATIONS} combinations at most." in SCENARIOS
    assert f"up to {MAX_DEPTH} deep" in SCENARIOS


@pytest.mark.parametrize("name", [*names.DEFECTS, *names.CUDNN_FRONTEND_RELEASES])
def test_defects_and_releases_are_on_the_page_of_kernels(name):
    assert f"`{name}`" in KERNELS or f"| {name} |" in KERNELS


def test_address_classes_are_on_the_page_of_kernels():
    from typing import get_args

    from harness.kernels.addresses import Klass

    for klass in get_args(Klass):
        assert f"| `{klass}` |" in KERNELS


def generator():
    spec = importlib.util.spec_from_file_location("kernel_tables", DOCS / "kernel_tables.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


def test_generated_tables_are_current():
    assert generator().updated(KERNELS) == KERNELS, "run python docs/kernel_tables.py"


def test_a_stale_table_is_noticed_and_a_lost_mark_is_an_error():
    tables = generator()
    stale = KERNELS.replace("| 1.25.0 | bottom-right |", "| 1.25.0 | top-left |")
    assert stale != KERNELS
    assert tables.updated(stale) != stale
    with pytest.raises(ValueError, match="expected the marks"):
        tables.updated(KERNELS.replace("<!-- end of defects -->", ""))


@pytest.mark.parametrize("page", [SCENARIOS, KERNELS], ids=["scenarios", "kernels"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://)([^)]*)\)", page):
        file, _, anchor = target.partition("#")
        text = (DOCS / file).read_text(encoding="utf-8") if file else page
        headings = [h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not anchor or anchor in headings, target
