from collections.abc import Callable
from pathlib import Path

import pytest

from harness.scenario.loader import LoadResult, load

MINIMAL = """\
id: case/minimal
summary: A minimal scenario.
model: small
microbatches:
  - sequences: [256]
"""


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., LoadResult]:
    """Write a scenario file and load it."""

    def write_and_load(text: str | bytes, name: str = "case.yaml") -> LoadResult:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load([path])

    return write_and_load


@pytest.fixture
def minimal() -> str:
    return MINIMAL
