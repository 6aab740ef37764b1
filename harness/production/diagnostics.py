"""What the build's DSA modules say in their log while a forward runs."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator

from harness.production.recorder import Message, Recorder

_VARIANT = "megatron.core.transformer.experimental_attention_variant"
_ONCE_SETS = ((f"{_VARIANT}.dsa_scoring_plan", "_REPORTED_UNFUSED"),)
"""Module and name of sets by which a build says something once per process."""


class _ToRecorder(logging.Handler):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(level=logging.DEBUG)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self._recorder.messages.append(
            Message(
                layer=self._recorder.layer,
                source=record.name.rpartition(".")[2],
                warning=record.levelno >= logging.WARNING,
                text=record.getMessage(),
            )
        )


@contextlib.contextmanager
def messages_kept(recorder: Recorder) -> Iterator[None]:
    """Keep log lines of the DSA modules, down to the breadcrumbs of declined hooks.

    What the build says once per process it says once per scenario here, so that scenarios that
    share a process do not hide it from one another.
    """
    logger = logging.getLogger(_VARIANT)
    handler, level = _ToRecorder(recorder), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    _forget_what_was_said()
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _forget_what_was_said() -> None:
    for module, name in _ONCE_SETS:
        with contextlib.suppress(ImportError):
            getattr(importlib.import_module(module), name, set()).clear()
