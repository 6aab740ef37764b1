"""PyTorch's benchmark record, version 3: one record per scenario and metric.

The fields are those of the wiki page "How to integrate with PyTorch OSS benchmark database"
(https://github.com/pytorch/pytorch/wiki/How-to-integrate-with-PyTorch-OSS-benchmark-database).
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from harness.record.environment import Environment
from harness.record.result import RunRecord, ScenarioResult
from reports.history.night import Entry, entry_of, versions
from reports.history.policy import POLICIES

_REPOSITORIES = {
    "torch": "pytorch/pytorch",
    "megatron_core": "NVIDIA/Megatron-LM",
    "cudnn_frontend": "NVIDIA/cudnn-frontend",
    "nccl": "NVIDIA/nccl",
    "flash_mla": "deepseek-ai/FlashMLA",
    "transformer_engine": "NVIDIA/TransformerEngine",
}


def records(record: RunRecord, results: tuple[ScenarioResult, ...]) -> list[dict[str, Any]]:
    """Return the records of a run; results that did not run have no metrics and so no record."""
    return [
        _record(record, result, entry, metric, value)
        for result in results
        for entry in (entry_of(result),)
        for metric, value in sorted(entry.metrics.items())
    ]


def _record(
    record: RunRecord, result: ScenarioResult, entry: Entry, metric: str, value: float
) -> dict[str, Any]:
    scenario = result.scenario
    model = scenario.get("model")
    values = scenario.get("values")
    policy = POLICIES.get(metric)
    return {
        "schema_version": "v3",
        "timestamp": _timestamp(record.started_at),
        "name": record.name,
        "repo": os.environ.get("GITHUB_REPOSITORY", ""),
        "head_branch": os.environ.get("GITHUB_REF_NAME", ""),
        "head_sha": os.environ.get("GITHUB_SHA", ""),
        "workflow_id": int(os.environ.get("GITHUB_RUN_ID", "0") or 0),
        "run_attempt": int(os.environ.get("GITHUB_RUN_ATTEMPT", "1") or 1),
        "runners": _runners(record.environment, record.world_size),
        "benchmark": {
            "name": "dsa-harness",
            "mode": str(scenario.get("level", "")),
            "dtype": str(values.get("dtype", "")) if isinstance(values, dict) else "",
            "extra_info": {
                "scenario": result.id,
                "content_hash": result.content_hash,
                "verdict": str(result.verdict),
                "outcome": str(result.outcome),
                "kernels": entry.origin,
                "plan": entry.plan,
            },
        },
        "model": {
            "name": str(model.get("name", "")) if isinstance(model, dict) else "",
            "type": "attention indexer",
            "backend": _backend(scenario),
            "origins": list(result.source),
        },
        "inputs": {"microbatches": {"type": "layout", "extra_info": _layout(scenario)}},
        "dependencies": _dependencies(record.environment),
        "metric": {
            "name": metric,
            "benchmark_values": [value],
            "target_value": None,
            "extra_info": {} if policy is None else {"better": policy.better},
        },
    }


def _timestamp(started_at: str) -> int:
    try:
        return int(datetime.fromisoformat(started_at).timestamp())
    except ValueError:
        return 0


def _backend(scenario: dict[str, object]) -> str:
    kernels = scenario.get("kernels")
    return str(kernels.get("dsa_kernel_backend", "")) if isinstance(kernels, dict) else ""


def _layout(scenario: dict[str, object]) -> dict[str, object]:
    return {name: scenario[name] for name in ("parallel", "microbatches") if name in scenario}


def _runners(environment: Environment, world_size: int) -> list[dict[str, Any]]:
    names = [gpu.name for gpu in environment.gpus]
    return [
        {
            "name": environment.host,
            "type": names[0] if names else "cpu",
            "cpu_count": environment.num_cpus,
            "gpu_info": ", ".join(dict.fromkeys(names)),
            "gpu_count": len(names),
            "extra_info": {"ranks": world_size, "platform": environment.platform},
        }
    ]


def _dependencies(environment: Environment) -> dict[str, dict[str, Any]]:
    found = {
        name: {"repo": _REPOSITORIES.get(name, ""), "branch": "", "sha": "", "version": version}
        for name, version in versions(environment).items()
        if name != "megatron_commit"
    }
    if "megatron_core" in found:
        found["megatron_core"]["sha"] = environment.megatron_commit or ""
    return found
