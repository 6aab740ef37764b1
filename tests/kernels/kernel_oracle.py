"""The installed release's own checks, run without a GPU, for comparison with a model's refusals.

The real wrappers run on fake CUDA tensors up to the point where they would compile or launch a
kernel; what they raise before that is the oracle. Only the exception type is compared.
"""

from __future__ import annotations

import contextlib
import importlib
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.kernels import CompileFailure
from harness.kernels.detect import installed_kernels

VERSION = installed_kernels().cudnn_frontend
CAPABILITY = {"sm90": (9, 0), "sm100": (10, 0)}
_ROOT = "cudnn.deepseek_sparse_attention"
_FORWARD = f"{_ROOT}.indexer_forward"
_NO_DRIVER = ("CUDA driver version is insufficient", "no NVIDIA driver", "InsufficientDriver")
"""What the first use of a device says where there is none: every check came before it."""


class ReachedCompilerError(Exception):
    """The real wrapper accepted the call: it went on to convert tensors for the compiler."""


def _reached(*_args, **_keywords):
    raise ReachedCompilerError


def _scoring_patches():
    return {
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.is_current_stream_capturing": lambda: False,
        f"{_FORWARD}._interface.resolve_stream": lambda stream=None: stream,
        f"{_FORWARD}._interface._torch_stream_context": lambda *_a: contextlib.nullcontext(),
        f"{_FORWARD}._interface._to_cute_tensor": _reached,
        f"{_FORWARD}._interface_sm90.resolve_stream": lambda stream=None: stream,
        f"{_FORWARD}._interface_sm90._torch_stream_context": lambda *_a: contextlib.nullcontext(),
        f"{_FORWARD}._interface_sm90._to_cute_tensor": _reached,
        f"{_FORWARD}._compressed_top_k_sm100.resolve_stream": lambda stream=None: stream,
        f"{_FORWARD}._compressed_top_k_sm100._to_cute_tensor": _reached,
    }


def _training_patches(compiles):
    """Stops for backward and recompute, and stand-ins for what they ask of a device on the way."""
    nothing = contextlib.nullcontext
    patches = {
        f"{_ROOT}.utils.compiler.gpu_arch_flag": lambda: "sm_100a",
        f"{_ROOT}.indexer_top_k.compactify.is_available": lambda: True,
        f"{_ROOT}.indexer_top_k.local_to_global_dsl.is_available": lambda: True,
        "torch.cuda.device": lambda *_a, **_k: nothing(),
        "torch.cuda.stream": lambda *_a, **_k: nothing(),
        "torch.cuda.nvtx.range": lambda *_a, **_k: nothing(),
        "torch.cuda.current_stream": lambda *_a, **_k: mock.Mock(cuda_stream=0),
        "torch.cuda.get_device_properties": lambda *_a, **_k: mock.Mock(multi_processor_count=132),
        "torch.Tensor.record_stream": lambda *_a, **_k: None,
        "cudnn._torch_stream._RAW_CURRENT": lambda *_a: 0,
    }
    for side in ("sm90", "sm100"):
        module = f"{_ROOT}.score_recompute._interface_{side}"
        if not compiles:
            patches[f"{module}.to_cute_tensor"] = lambda *_a, **_k: mock.Mock()
            patches[f"{module}.cute.compile"] = _reached
        patches[f"{_ROOT}.sparse_attention_backward._interface_{side}.memset_zero_async"] = _reached
    attention = f"{_ROOT}.sparse_attention_backward"
    for target in (
        f"{attention}._interface_sm100._compile_nondeterministic_sm100",
        f"{attention}._interface_sm100._compile_deterministic_sm100",
        f"{attention}._interface_sm100_d576._compile_d576_2cta",
    ):
        patches[target] = lambda *_a, **_k: mock.Mock(side_effect=ReachedCompilerError)
    for module in ("api", "indexer_backward_sm90"):
        patches[f"{_ROOT}.indexer_backward.{module}.memset_zero_async"] = _reached
    return patches


def _forget_plans():
    """Empty the wrappers' plan caches: their keys do not tell architectures apart."""
    for package in ("indexer_backward", "score_recompute", "sparse_attention_backward"):
        module = importlib.import_module(f"{_ROOT}.{package}.api")
        for name, value in vars(module).items():
            if name.startswith("_cache_of_"):
                value.clear()


@contextlib.contextmanager
def pretended_device(arch, training=False, compiles=False):
    """Make the real wrappers believe in a device of ``arch`` and stop them at the compiler.

    With ``compiles`` the compiler works on what it gets, and the first use of a device stops it.
    """
    patches = _scoring_patches()
    patches["torch.cuda.get_device_capability"] = lambda *_a, **_k: CAPABILITY[arch]
    if training:
        patches.update(_training_patches(compiles))
    _forget_plans()
    cache = importlib.import_module(f"{_ROOT}.utils.runtime")._device_capability
    with contextlib.ExitStack() as stack:
        stack.callback(cache.cache_clear)
        for target, replacement in patches.items():
            stack.enter_context(mock.patch(target, replacement))
        cache.cache_clear()
        yield


class Make:
    """Builds the same call for the real wrapper (fake CUDA tensors) and for the model."""

    def __init__(self, device):
        self.device = device

    def bf16(self, *shape):
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.device)

    def fp32(self, *shape):
        return torch.zeros(shape, device=self.device)

    def int32(self, *values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def int32_zeros(self, *shape):
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def bshd(self, rows=4, keys=4, heads=32, depth=128, batch=1):
        return (
            self.bf16(batch, rows, heads, depth),
            self.bf16(batch, keys, 1, depth),
            self.bf16(batch, rows, heads),
        )

    def thd(self, rows=4, keys=4, heads=32):
        q, k, w = self.bshd(rows, keys, heads)
        return q[0], k[0], w[0]

    def cu(self, *values, rows=4):
        cu = self.int32(0, *(values or (rows,)))
        return {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": rows, "max_seqlen_k": rows}


def outcome(function, case, device):
    """Exception type of a call; None when it was accepted."""
    arguments, keywords = case(Make(device))
    try:
        function(*arguments, **keywords)
    except (ReachedCompilerError, CompileFailure):
        return None
    except Exception as error:  # noqa: BLE001 - the type is what is compared
        return None if any(text in str(error) for text in _NO_DRIVER) else type(error)
    return None


def assert_same(real_function, model, case, arch, training=False):
    with pretended_device(arch, training), FakeTensorMode(allow_non_fake_inputs=True):
        expected = outcome(real_function, case, "cuda")
    assert outcome(model, case, "cpu") is expected
