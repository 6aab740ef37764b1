"""What the tests of overlays share: the installed Megatron, and snapshots of what they touch."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)

VARIANT = "megatron.core.transformer.experimental_attention_variant"
TOUCHED = (
    f"{VARIANT}",
    f"{VARIANT}.dsa",
    f"{VARIANT}.dsa_layout",
    f"{VARIANT}.dsa_masking",
    f"{VARIANT}.dsa_kernels",
    f"{VARIANT}.dsa_cudnn_kernels",
    f"{VARIANT}.absorbed_mla",
    "megatron.core.models.common.embeddings.rope_utils",
    "megatron.core.transformer.transformer_config",
    "megatron.core.packed_seq_params",
)


def module(name: str) -> Any:
    """A module of the variant, by its last name."""
    return importlib.import_module(f"{VARIANT}.{name}")


def snapshot() -> dict[str, dict[str, int]]:
    """Identities of everything in the modules and classes that overlays may touch."""
    found = {}
    for name in TOUCHED:
        owner = importlib.import_module(name)
        found[name] = {key: id(value) for key, value in vars(owner).items()}
        for key, value in vars(owner).items():
            if isinstance(value, type) and value.__module__ == name:
                found[f"{name}.{key}"] = {k: id(v) for k, v in vars(value).items()}
    found["sys.modules"] = {
        name: id(value) for name, value in sys.modules.items() if name.startswith(VARIANT)
    }
    return found
