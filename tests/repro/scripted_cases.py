"""Cases for exported scripts: healthy and faulty ones of every level, small enough for seconds."""

from __future__ import annotations

from harness.scenario.loader import load
from harness.scenario.spec import Scenario

SCORER = """\
id: case/{name}
summary: A pack keeps its causal positions in the fused scorer.
source: [https://github.com/NVIDIA/cudnn-frontend/pull/316]
model: {{base: small, dsa_indexer_topk: {topk}}}
level: {level}
kernels:
  dsa_kernel_backend: {backend}
  source: modelled
  modelled: {{cudnn_frontend: "{release}", arch: {arch}}}
overlays: {overlays}
parallel: {{context_parallel_size: {cp}}}
microbatches: {microbatches}
values: {{scores: {scores}}}
"""

DEFAULTS = {
    "topk": 4,
    "level": "scorer",
    "backend": "cudnn",
    "release": "1.32.0",
    "arch": "sm100",
    "overlays": "[]",
    "cp": 2,
    "microbatches": "[{sequences: [16]}]",
    "scores": "normal",
}

SCORER_CASES: dict[str, dict[str, object]] = {
    "wrong-window": {},
    "corrected": {"overlays": "[causal_offsets]"},
    "bottom-right": {"release": "1.25.0"},
    "phantom-lanes": {"release": "1.26.0"},
    "short-rows": {"release": "1.31.0", "arch": "sm90", "topk": 2},
    "several": {"microbatches": "[{sequences: [32, 0, 21]}]", "topk": 8},
    "several-right": {
        "microbatches": "[{sequences: [32, 0, 21], tail_padding: 8}]",
        "release": "1.25.0",
        "topk": 8,
    },
    "other-keys": {
        "microbatches": "[{sequences: [16, 8], kv_sequences: [8, 16]}]",
        "backend": "none",
    },
    "unpacked": {"microbatches": "[{sequences: [16, 16], qkv_format: sbhd}]", "cp": 1},
    "two-microbatches": {"microbatches": "[{sequences: [16]}, {sequences: [8, 8]}]"},
    "ties": {"scores": "ties", "release": "1.25.0", "topk": 8},
    "declined": {"microbatches": "[{sequences: [16, 8], key_positions: explicit}]"},
    "without-cp": {"microbatches": "[{sequences: [16, 8]}]", "cp": 1},
    "underflow": {"scores": "underflow", "release": "1.26.0", "overlays": "[causal_offsets]"},
}

KERNEL = """\
id: case/{name}
summary: A kernel wrapper called on its own.
model:
  base: small
  num_attention_heads: {heads}
  dsa_indexer_n_heads: 64
  dsa_indexer_topk: {topk}
level: kernel
kernels:
  dsa_kernel_backend: cudnn
  source: modelled
  modelled: {{cudnn_frontend: "{release}", arch: {arch}}}
microbatches: [{{sequences: {rows}, qkv_format: sbhd}}]
kernel_call: {call}
"""

_BACKWARD = "wrapper: indexer_backward, keys: 40, selected: 20"
_ATTENTION = "wrapper: sparse_attention_backward, keys: 80, selected: 20"
_TARGET = "wrapper: sparse_attn_score_recompute, keys: 400, lengths: selected"
_ALIASED = _BACKWARD + ", edits: [{batch: 0, row: 1, slot: 3, id: 40}]"

KERNEL_DEFAULTS = {"heads": 64, "topk": 128, "release": "1.32.0", "arch": "sm100", "rows": "[4]"}

KERNEL_CASES: dict[str, dict[str, object]] = {
    "aliased-id": {"call": _ALIASED, "release": "1.26.0", "rows": "[4, 4]"},
    "id-rejected": {"call": _ALIASED, "rows": "[4, 4]"},
    "old-gradient": {"call": _BACKWARD + ", d_index_k: filled", "release": "1.27.0"},
    "old-gradient-zeroed": {"call": _BACKWARD + ", d_index_k: filled"},
    "backward-width": {"call": _BACKWARD, "topk": 100},
    "id-past-keys": {
        "call": _ATTENTION + ", edits: [{row: 1, slot: 2, id: 99}]",
        "release": "1.28.0",
    },
    "id-ignored": {"call": _ATTENTION + ", edits: [{row: 1, slot: 2, id: 99}]"},
    "empty-row": {
        "call": _ATTENTION + ", lengths: selected, edits: [{row: 1, length: 0}]",
        "release": "1.26.0",
    },
    "few-heads": {"call": _ATTENTION, "release": "1.26.0", "arch": "sm90", "heads": 32},
    "late-slots": {
        "call": "wrapper: sparse_attention_backward, keys: 40, selected: 20, placement: back",
        "release": "1.25.0",
    },
    "six-blocks": {"call": _TARGET, "release": "1.30.0", "topk": 384},
    "six-blocks-right": {"call": _TARGET, "release": "1.31.0", "topk": 384},
    "lengths-ignored": {
        "call": "wrapper: sparse_attn_score_recompute, keys: 80, selected: 40, lengths: selected, "
        "edits: [{row: 2, length: 10}]",
        "heads": 32,
    },
}


def cases(folder, wanted: dict[str, dict[str, object]]) -> dict[str, Scenario]:
    """Write the cases as files and load them: name to scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, changes in wanted.items():
        kernel = "call" in changes
        values = (KERNEL_DEFAULTS if kernel else DEFAULTS) | changes
        if kernel:
            values["call"] = "{" + str(values["call"]) + "}"
        text = (KERNEL if kernel else SCORER).format(name=name, **values)
        (folder / f"{name}.yaml").write_text(text)
    loaded = load([folder])
    assert loaded.ok, [str(problem) for problem in loaded.problems]
    return {item.scenario.id.removeprefix("case/"): item.scenario for item in loaded.scenarios}
