"""Everything a rank of a CPU run imports, for the forkserver to load once.

Imports only: a multi-threaded matmul here would deadlock the first matmul of a forked child, and
anything that asks CUDA for its devices would keep a forked child from using them.
"""

import importlib
import warnings

from harness.production.locate import find_build
from harness.production.probes import build_facts

_MODULES = (
    "megatron.core.models.gpt.experimental_attention_variant_module_specs",
    "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels",
    "harness.production.attention",
    "harness.production.scorer",
)

with warnings.catch_warnings():
    # Megatron warns about each optional package that is absent; the record lists them once.
    warnings.simplefilter("ignore")
    for _name in _MODULES:
        importlib.import_module(_name)

# The facts are cached by folder, and forked children inherit the cache.
build_facts(find_build())
