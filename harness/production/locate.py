"""Find the Megatron build under test and its identity, without importing it."""

from __future__ import annotations

import ast
import importlib.machinery
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DSA_FOLDER = Path("core", "transformer", "experimental_attention_variant")
DSA_MODULES = ("dsa.py", "dsa_kernels.py", "dsa_cudnn_kernels.py", "dsa_layout.py")


class BuildError(ValueError):
    """The Megatron build asked for cannot be used; the message says what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronBuild:
    """Identity of a Megatron build.

    Attributes:
        root: Folder to put on ``sys.path``, the parent of the ``megatron`` package.
        version: ``megatron.core`` version read from its ``package_info.py``.
        commit: Commit of the checkout, None for an installed package.
        dirty: Whether the checkout has uncommitted changes, None for an installed package.
    """

    root: Path
    version: str
    commit: str | None = None
    dirty: bool | None = None

    @property
    def package(self) -> Path:
        """The ``megatron`` package folder."""
        return self.root / "megatron"

    def dsa_source(self, module: str) -> Path:
        """Path of one of the DSA modules, such as ``dsa_layout.py``."""
        return self.package / DSA_FOLDER / module


def find_build(checkout: str | None = None) -> MegatronBuild:
    """Locate the installed megatron-core, or the checkout given.

    Args:
        checkout: Path of a Megatron-LM checkout, None for the installed package.

    Raises:
        BuildError: when nothing usable is there.
    """
    root = _checkout_root(checkout) if checkout is not None else _installed_root()
    missing = [name for name in DSA_MODULES if not (root / "megatron" / DSA_FOLDER / name).exists()]
    if missing:
        raise BuildError(
            f"{root}: megatron.core there has no {missing[0]} under megatron/{DSA_FOLDER}; the "
            "packed DSA path needs megatron-core 0.19 or newer, or a checkout that has it"
        )
    commit, dirty = _git_identity(root) if checkout is not None else (None, None)
    return MegatronBuild(root=root, version=_read_version(root), commit=commit, dirty=dirty)


def activate(build: MegatronBuild) -> None:
    """Put the build first on ``sys.path``.

    Raises:
        BuildError: when another ``megatron`` was imported already.
    """
    root = str(build.root)
    if root in sys.path:
        sys.path.remove(root)
    sys.path.insert(0, root)
    core = sys.modules.get("megatron.core")
    origin = getattr(core, "__file__", None)
    if origin is not None and build.package not in Path(origin).parents:
        raise BuildError(
            f"megatron.core was already imported from {origin}, not from {build.package}; start a "
            "fresh process"
        )


def _checkout_root(checkout: str) -> Path:
    root = Path(checkout).expanduser().resolve()
    if not root.is_dir():
        raise BuildError(f"--megatron {checkout}: no such folder; give a Megatron-LM checkout")
    if not (root / "megatron" / "core").is_dir():
        raise BuildError(
            f"--megatron {checkout}: expected megatron/core below it, found none; give the "
            "top folder of a Megatron-LM checkout"
        )
    return root


def _installed_root() -> Path:
    # ``megatron`` is a namespace package: PathFinder finds it without importing anything.
    spec = importlib.machinery.PathFinder.find_spec("megatron")
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    for location in locations:
        if (Path(location) / "core" / "package_info.py").exists():
            return Path(location).resolve().parent
    raise BuildError(
        "megatron-core is not installed; run `pip install megatron-core`, or give a checkout with "
        "--megatron PATH"
    )


def _read_version(root: Path) -> str:
    """Evaluate MAJOR, MINOR, PATCH and PRE_RELEASE of package_info.py without running it."""
    source = root / "megatron" / "core" / "package_info.py"
    values: dict[str, object] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                values[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    parts = [values.get(name) for name in ("MAJOR", "MINOR", "PATCH")]
    if any(part is None for part in parts):
        return "unknown"
    return ".".join(str(part) for part in parts) + str(values.get("PRE_RELEASE") or "")


def _git_identity(root: Path) -> tuple[str | None, bool | None]:
    def git(*args: str) -> str | None:
        command = ["git", "-C", str(root), *args]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = git("status", "--porcelain", "--untracked-files=no")
    return commit, bool(status)
