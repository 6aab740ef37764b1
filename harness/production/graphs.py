"""CUDA-graph modes: construction with its warnings, and capture on a device."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from harness.production.config import transformer_config
from harness.record.graphs import GraphWarning
from harness.scenario.spec import Scenario

WARM_UPS = 3
"""Forwards before a capture, as Megatron's default ``cuda_graph_warmup_steps``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Construction:
    """What became of building a configuration.

    Attributes:
        constructs: Whether it was built.
        refusal: Class and text of what was raised instead.
        warnings: Warnings and log lines, equal ones counted.
    """

    constructs: bool
    refusal: str
    warnings: tuple[GraphWarning, ...]


def construct(scenario: Scenario, *, modelled: bool) -> Construction:
    """Build the scenario's configuration with its graph mode, and keep what it says."""
    refusal = ""
    with warnings.catch_warnings(record=True) as seen, _log_lines() as lines:
        warnings.simplefilter("always")
        try:
            transformer_config(scenario, modelled=modelled, graphs=True)
        except Exception as error:  # noqa: BLE001 (a refusal is what is looked for)
            refusal = f"{type(error).__name__}: {error}"
    said = [(str(warning.message), warning.category.__name__) for warning in seen]
    said += [(line, "log") for line in lines]
    found = tuple(
        GraphWarning(
            text=text, category=category, count=count, about_packed_dsa=about_packed_dsa(text)
        )
        for (text, category), count in Counter(said).items()
    )
    return Construction(constructs=not refusal, refusal=refusal, warnings=found)


@contextlib.contextmanager
def _log_lines() -> Iterator[list[str]]:
    """Collect what any logger says at level warning or above."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, root = Keep(level=logging.WARNING), logging.getLogger()
    root.addHandler(handler)
    try:
        yield lines
    finally:
        root.removeHandler(handler)


def about_packed_dsa(text: str) -> bool:
    """Whether a warning is about packed DSA, with CP or Dynamic CP, under CUDA graphs."""
    words = text.lower()
    packed = "packed" in words or "thd" in words or "dynamic" in words
    return "dsa" in words and "graph" in words and packed


def warnings_due(scenario: Scenario) -> int:
    """Warnings that the public contract asks for.

    One with graphs on for packed DSA, where CP is above 1 or Dynamic CP is on (at any configured
    size); whatever the backend and the modules are. The mode ``none`` is silent. Source: the text
    of https://github.com/NVIDIA/Megatron-LM/pull/6206.
    """
    if scenario.graph.cuda_graph_impl == "none":
        return 0
    packed = any(microbatch.qkv_format == "thd" for microbatch in scenario.microbatches)
    parallel = scenario.parallel
    spread = parallel.context_parallel_size > 1 or parallel.dynamic_context_parallel
    return int(packed and spread)


def missing_for_capture(impl: str) -> str:
    """What this machine lacks for a capture, empty when nothing."""
    if not torch.cuda.is_available():
        return "usable GPU"
    if impl == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        return "transformer_engine"
    return ""


class GraphDevice(Protocol):
    """Captures a forward and replays it."""

    def capture(self, forward: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Return the forward's static result and what replays it in place."""


class CudaGraphs:
    """Captures on the current CUDA device."""

    def capture(self, forward: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Warm up beside the current stream, then capture.

        Raises:
            RuntimeError: what the capture stopped at.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = forward()
        return result, graph.replay
