"""The text that goes with a script: ready to paste where the project's maintainers read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.record.environment import Environment
from harness.record.result import Attempt
from harness.record.selection import OverlapStats
from harness.record.verdict import Verdict
from harness.repro.script import kernels_in_words, needs_in_words
from harness.repro.source import Exported
from harness.scenario.spec import Scenario

_SHOWN_RANKS = 16
_BEHAVIOURS = {
    "chunk_local_window": ": row r of a chunk sees the first r + 1 keys of its sequence alone, "
    "wherever in the sequence the chunk stands",
}
_VERSIONS = (
    ("python", "Python"),
    ("torch", "torch"),
    ("megatron_core", "megatron-core"),
    ("megatron_commit", "Megatron-LM commit"),
    ("cudnn_frontend", "nvidia-cudnn-frontend"),
    ("cute_dsl", "nvidia-cutlass-dsl"),
    ("cudnn", "cuDNN"),
    ("cuda", "CUDA"),
    ("nccl", "NCCL"),
    ("driver", "driver"),
    ("flash_mla", "FlashMLA"),
    ("transformer_engine", "Transformer Engine"),
)


def issue_text(
    exported: Exported,
    environment: Environment,
    *,
    redact: Callable[[str], str],
    script: str | None,
    why_no_script: str = "",
) -> str:
    """Return the text, in Markdown; the first line is the title.

    Args:
        exported: The scenario, and what a run showed.
        environment: Versions to tell.
        redact: Applied to all words that come from a run; versions are kept as they are.
        script: File name of the script, None where there is none.
        why_no_script: Why not.
    """
    scenario, result = exported.scenario, exported.result
    verdict = scenario.expect.verdict if result is None else result.verdict
    lines = [f"# {_title(scenario, verdict if result is not None else None)}", ""]
    lines += ["## What happens", "", *map(redact, _what_happens(exported)), ""]
    lines += ["## Expected", "", f"{scenario.summary} (verdict `{scenario.expect.verdict}`)", ""]
    lines += ["## Versions", "", *_versions(scenario, environment), ""]
    lines += ["## How to run", "", *_how_to_run(scenario, script, why_no_script), ""]
    if result is not None:
        lines += ["## Numbers", "", *_numbers(result.last), ""]
    lines += ["## Links", "", *(f"- {link}" for link in _links(scenario)), ""]
    return "\n".join(lines)


def _title(scenario: Scenario, verdict: Verdict | None) -> str:
    pack = scenario.microbatches[0].sequences
    lengths = f"{list(pack)}" if len(pack) <= 4 else f"{len(pack)} sequences"
    shape = f"CP {scenario.parallel.context_parallel_size}, pack {lengths}"
    seen = "selection judged" if verdict is None else str(verdict).replace("_", " ")
    return f"DSA indexer, packed THD with context parallelism: {seen} ({shape})"


def _what_happens(exported: Exported) -> Iterator[str]:
    scenario, result = exported.scenario, exported.result
    yield f"Kernels: {kernels_in_words(scenario).replace('this file', 'the script')}."
    if result is None:
        yield "No run is attached: the script prints what happens."
        return
    attempt = result.last
    yield f"Verdict: `{attempt.verdict}`."
    if attempt.fault is not None:
        yield f"First fault: {attempt.fault.cause}."
    for behaviour in attempt.behaviours[:1]:
        if behaviour.rows and behaviour.rows_matching == behaviour.rows:
            yield (
                f"On cp_rank {behaviour.cp_rank} the picks of all {behaviour.rows} rows are those "
                f"of `{behaviour.name}`{_BEHAVIOURS.get(behaviour.name, '')}."
            )
    for value in [value for value in attempt.values if not value.within][:4]:
        yield f"Beyond tolerance: `{value.name}`."
    for deviation in attempt.deviations[:2]:
        yield f"Path: {deviation.text}."


def _versions(scenario: Scenario, environment: Environment) -> Iterator[str]:
    modelled = scenario.kernels.modelled
    cudnn = scenario.kernels.dsa_kernel_backend == "cudnn"
    if cudnn and scenario.kernels.source != "hardware":
        yield (
            f"- kernels: MODELLED nvidia-cudnn-frontend {modelled.cudnn_frontend} on "
            f"{modelled.arch} (nothing was run on a GPU)"
        )
    for name, label in _VERSIONS:
        found = getattr(environment, name)
        if found is not None:
            idle = name == "cudnn_frontend" and cudnn and scenario.kernels.source != "hardware"
            yield f"- {label}: {found}{' (installed, not run)' if idle else ''}"
    for gpu in sorted({f"{gpu.name} ({gpu.capability})" for gpu in environment.gpus}):
        yield f"- GPU: {gpu}"
    yield f"- platform: {environment.platform.partition('-')[0]}"


def _how_to_run(scenario: Scenario, script: str | None, why_no_script: str) -> Iterator[str]:
    if script is None:
        yield f"There is no script for this case: {why_no_script}."
        yield "`scenario.yaml` runs with the harness: `dsa-harness run scenario.yaml`."
        return
    yield f"`{script}` is one file. It needs {needs_in_words(scenario)} and nothing else:"
    yield ""
    yield "```bash"
    yield f"python {script}"
    if scenario.kernels.dsa_kernel_backend == "cudnn":
        yield f"python {script} --real    # the installed kernels, on a GPU"
    yield "```"
    yield ""
    yield "It prints the verdict and exits with 0 where that is the expected one, else with 1."


def _numbers(attempt: Attempt) -> Iterator[str]:
    totals: dict[tuple[int, str], OverlapStats] = {}
    for selection in attempt.selections:
        key = (selection.cp_rank, selection.stage)
        totals[key] = totals.get(key, OverlapStats(rows=0)) + selection.total
    if not totals:
        yield "No selection was judged."
        return
    yield "| cp_rank | stage | rows | picks due | overlap | strict | out of bounds | missing |"
    yield "|---|---|---|---|---|---|---|---|"
    for (rank, stage), stats in sorted(totals.items())[:_SHOWN_RANKS]:
        # What the kernel itself returned is judged for bounds alone.
        judged = stage == "final"
        shares = (stats.overlap, stats.strict_overlap) if judged else ()
        counts = (stats.due, *(f"{share:.4f}" for share in shares)) if judged else ("-",) * 3
        missing = stats.missing if judged else "-"
        words = (rank, stage, stats.rows, *counts, stats.num_out_of_bounds, missing)
        yield f"| {' | '.join(map(str, words))} |"


def _links(scenario: Scenario) -> list[str]:
    links = [*scenario.source, *(rule.link for rule in scenario.known if rule.link)]
    return list(dict.fromkeys(links)) or ["none known"]
