"""Finding a build: the installed one, checkouts, and what is refused with which words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.production.locate import DSA_FOLDER, DSA_MODULES, BuildError, find_build


def make_checkout(root: Path, *, modules: tuple[str, ...] = DSA_MODULES) -> Path:
    core = root / "megatron" / "core"
    (root / "megatron" / DSA_FOLDER).mkdir(parents=True)
    (core / "package_info.py").write_text(
        "MAJOR = 0\nMINOR = 20\nPATCH = 0\nPRE_RELEASE = 'rc0'\nVERSION = (MAJOR, MINOR)\n"
    )
    for name in modules:
        (root / "megatron" / DSA_FOLDER / name).write_text("")
    return root


def test_installed_build_has_version_and_no_commit():
    build = find_build()
    assert build.version.startswith("0.")
    assert build.commit is None
    assert build.dsa_source("dsa.py").exists()


def test_checkout_is_known_by_version_commit_and_dirt(tmp_path):
    root = make_checkout(tmp_path / "mlm")

    def git(*args: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        subprocess.run(["git", "-C", str(root), *identity, *args], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = find_build(str(root))
    assert clean.version == "0.20.0rc0"
    assert clean.commit is not None and len(clean.commit) == 40
    assert clean.dirty is False
    (root / "megatron" / DSA_FOLDER / "dsa.py").write_text("changed = True\n")
    assert find_build(str(root)).dirty is True


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: None, "no such folder"),
        (lambda root: root.mkdir(), "expected megatron/core below it"),
        (lambda root: make_checkout(root, modules=("dsa.py",)), "has no dsa_kernels.py"),
    ],
)
def test_unusable_checkout_says_what_to_give(tmp_path, make, said):
    root = tmp_path / "mlm"
    make(root)
    with pytest.raises(BuildError, match=said) as raised:
        find_build(str(root))
    assert "\n" not in str(raised.value)
