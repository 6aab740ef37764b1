"""The wrappers: put on by name when Megatron is imported, taken off again, never in the way."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.repro.job.dsa_capture import hooks

ROOT = Path(__file__).resolve().parents[2]
DSA = f"{hooks.VARIANT}.dsa"


class Heard:
    """Stands in for the recorder."""

    def __init__(self, breaks: str = "") -> None:
        self.heard: list[str] = []
        self.breaks = breaks
        self.settings = SimpleNamespace(tensor_bytes=0)

    def _hear(self, what: str) -> str:
        self.heard.append(what)
        if what == self.breaks:
            raise RuntimeError("the recorder itself")
        return what

    def enter(self, module, given):
        self._hear("enter " + " ".join(sorted(given)))
        return SimpleNamespace()

    def leave(self, call, output):
        self._hear(f"leave {output}")

    def failed(self, call, error):
        self._hear(f"failed {error}")

    def scores(self, scores, *, kernel):
        self._hear(f"scores {kernel}")


class Attention:
    def forward(self, query, key, *, packed_seq_params=None):
        if query == "bad":
            raise ValueError("refused")
        return "output"


def session_of(heard):
    session = hooks.Session(lambda: heard)
    session.recorder = lambda: None if session._broken else heard
    return session


def test_a_call_is_told_before_and_behind():
    heard = Heard()
    forward = hooks._attention(Attention.forward, session_of(heard))
    assert forward(Attention(), "q", "k", packed_seq_params=1) == "output"
    assert heard.heard == ["enter key packed_seq_params query", "leave output"]
    assert inspect.signature(forward) == inspect.signature(Attention.forward)


def test_an_exception_is_told_and_goes_on():
    heard = Heard()
    forward = hooks._attention(Attention.forward, session_of(heard))
    with pytest.raises(ValueError, match="refused"):
        forward(Attention(), "bad", "k")
    assert heard.heard[-1] == "failed refused"


@pytest.mark.parametrize("breaks", ["enter key query", "leave output"])
def test_an_error_of_the_recorder_ends_the_recorder_and_not_the_job(breaks, capsys):
    heard = Heard(breaks)
    forward = hooks._attention(Attention.forward, session_of(heard))
    assert forward(Attention(), "q", "k") == "output"
    told = len(heard.heard)
    assert forward(Attention(), "q", "k") == "output"
    assert len(heard.heard) == told
    assert "given up" in capsys.readouterr().err


def test_the_released_build_has_every_name():
    for module, names in hooks._PATCHES.items():
        found = importlib.import_module(module)
        for path in names:
            owner = found
            for part in path.split("."):
                owner = getattr(owner, part)
            assert callable(owner), path


def test_what_is_imported_already_is_wrapped_and_unwrapped():
    module = importlib.import_module(DSA)
    before = vars(module.DSAttention)["forward"], module.fused_qk_topk_naive
    heard = Heard()
    session = hooks.watch(lambda: heard)
    try:
        assert hooks.watch(lambda: heard) is session
        assert module.DSAttention.forward is not before[0]
        session.recorder = lambda: heard
        scores = torch.ones(4, 1, 2, 8), torch.ones(4, 1, 8), torch.ones(4, 1, 2)
        module.fused_qk_topk_naive(*scores, 2)
        assert heard.heard == ["scores fused_qk_topk_naive"]
    finally:
        hooks.unwatch()
    assert vars(module.DSAttention)["forward"] is before[0]
    assert module.fused_qk_topk_naive is before[1]


def test_one_import_switches_it_on(monkeypatch, tmp_path):
    monkeypatch.setattr("harness.repro.job.dsa_capture.switch_on", lambda: tmp_path)
    monkeypatch.delitem(sys.modules, "harness.repro.capture", raising=False)
    assert tmp_path == importlib.import_module("harness.repro.capture").FOLDER
    monkeypatch.delitem(sys.modules, "harness.repro.capture")


_IMPORTS = f"""
import sys
sys.path.insert(0, {str(ROOT / "harness" / "repro" / "job")!r})
import dsa_capture
dsa_capture.switch_on({{folder!r}})
assert "megatron" not in sys.modules, "the recorder imported Megatron"
import warnings
warnings.simplefilter("ignore")
import {DSA} as dsa
assert hasattr(dsa.DSAttention.forward, "__dsa_capture__")
assert type(dsa.__loader__).__name__ == "SourceFileLoader"
assert "harness" not in sys.modules, "the folder alone must do"
assert not any(name.startswith("pydantic") for name in sys.modules)
"""


def test_a_later_import_is_wrapped_by_the_folder_alone(tmp_path):
    code = _IMPORTS.format(folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
