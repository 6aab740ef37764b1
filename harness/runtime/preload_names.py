"""Names of the preload modules, apart from them so that naming one does not import torch."""

PRELOAD = "harness.runtime.preload"
"""Torch and the production modules: CPU ranks."""
PRELOAD_TORCH = "harness.runtime.preload_torch"
"""Torch alone: ranks that use CUDA."""
PARENT_VARIABLE = "DSA_HARNESS_FORKSERVER_PARENT"
"""Environment variable with the process id of the worker that starts the forkserver."""
