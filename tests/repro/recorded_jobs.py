"""Captures for tests: the recorder is driven with the sizes of a job, which does not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness.layout import pack_sequences
from harness.repro.job.dsa_capture.recorder import Recorder
from harness.repro.job.dsa_capture.settings import Settings

GLM = {
    "num_layers": 78,
    "hidden_size": 6144,
    "ffn_hidden_size": 12288,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_head_dim": 192,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 256,
    "dsa_indexer_n_heads": 32,
    "dsa_indexer_head_dim": 128,
    "dsa_indexer_topk": 2048,
    "dsa_kernel_backend": "cudnn",
    "cuda_graph_impl": "none",
}
SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "kv_lora_rank": 512,
    "qk_pos_emb_head_dim": 64,
    "dsa_indexer_topk": 16,
    "dsa_kernel_backend": "none",
    "recompute_granularity": None,
}


class Group:
    """A process group by its sizes alone."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


class Packed:
    """``PackedSeqParams`` with the fields of 0.19.2."""

    def __init__(self, **fields: Any) -> None:
        self.qkv_format = "thd"
        self.local_cp_size = self.cp_group = self.total_tokens = None
        self.__dict__.update(fields)


def packed(
    sequences: Sequence[int], cp_size: int, *, device: Any = None, tail: int = 0
) -> tuple[Packed, int]:
    """Return a pack and the rows of one rank."""
    pack = pack_sequences(sequences, cp_size=cp_size, tail_padding=tail)
    lists = {
        "cu_seqlens_q": pack.cu_seqlens_q,
        "cu_seqlens_kv": pack.cu_seqlens_k,
        "cu_seqlens_q_padded": pack.cu_seqlens_q_padded,
        "cu_seqlens_kv_padded": pack.cu_seqlens_k_padded,
    }
    tensors = {name: torch.tensor(values, dtype=torch.int32) for name, values in lists.items()}
    if device is not None:
        tensors = {name: device(tensor) for name, tensor in tensors.items()}
    maxima = {"max_seqlen_q": pack.max_seqlen_q, "max_seqlen_kv": pack.max_seqlen_k}
    return Packed(**tensors, **maxima), pack.rows_per_rank


@dataclass(kw_only=True)
class Job:
    """One rank of a job; tensors other than the boundaries are shapes alone."""

    folder: Path
    cp_size: int = 4
    cp_rank: int = 0
    rank: int = 0
    configured: int | None = None
    fields: dict[str, Any] = field(default_factory=lambda: dict(SMALL))
    settings: dict[str, Any] = field(default_factory=dict)
    device: Any = None
    versions: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recorder = Recorder(Settings(folder=self.folder, **self.settings), self.device)
        process = self.recorder._process
        process["versions"] = {**process["versions"], **self.versions}
        process["environment"] = self.environment
        self.recorder._rank = self.rank
        for index, path in enumerate(self.recorder._files._paths):
            name = path.name.replace("rank00000", f"rank{self.rank:05d}")
            paths = list(self.recorder._files._paths)
            paths[index] = path.with_name(name)
            self.recorder._files._paths = tuple(paths)
        self.config = SimpleNamespace(
            context_parallel_size=self.configured or self.cp_size, **self.fields
        )

    def module(self, layer: int, *, training: bool = True, cp_size: int | None = None) -> Any:
        size = self.cp_size if cp_size is None else cp_size
        cp = Group(size, self.cp_rank % size)
        return SimpleNamespace(
            layer_number=layer,
            training=training,
            config=self.config,
            cp_comm_type="allgather",
            pg_collection=SimpleNamespace(cp=cp, tp=Group(1, 0)),
        )

    def given(self, params: Any, rows: int, *, batch: int | None = None) -> dict[str, Any]:
        shape = (rows, 64, 576) if batch is None else (rows, batch, 64, 576)
        return {
            "query": torch.empty(shape, dtype=torch.bfloat16, device="meta"),
            "key": torch.empty((rows, 1, 576), dtype=torch.bfloat16, device="meta"),
            "x": torch.empty((rows, 1, 64), dtype=torch.bfloat16, device="meta"),
            "packed_seq_params": params,
        }

    def forward(
        self,
        sequences: Sequence[int],
        *,
        layers: Iterable[int] = (1, 2),
        training: bool = True,
        cp_size: int | None = None,
    ) -> Packed:
        """Run a microbatch through the recorder."""
        params, rows = packed(sequences, cp_size or self.cp_size)
        for layer in layers:
            module = self.module(layer, training=training, cp_size=cp_size)
            call = self.recorder.enter(module, self.given(params, rows))
            self.recorder.leave(call, None)
        return params

    def fault(self, sequences: Sequence[int], error: BaseException, *, layer: int = 1) -> None:
        """Begin a microbatch that ends with an exception inside a layer."""
        params, rows = packed(sequences, self.cp_size)
        call = self.recorder.enter(self.module(layer), self.given(params, rows))
        self.recorder.failed(call, error)
        self.recorder.close()


def raised_in_kernel(error: BaseException) -> BaseException:
    """Give an exception the traceback of one that came out of the top-k wrapper."""

    def indexer_top_k_wrapper() -> None:
        raise error

    try:
        indexer_top_k_wrapper()
    except type(error) as caught:
        return caught
    raise AssertionError


def pr14_capture(folder: Path, *, cudnn_frontend: str) -> None:
    """Record what rank 31 of the public 131,072-token case at CP 32 was given before it died."""
    job = Job(
        folder=folder,
        cp_size=32,
        cp_rank=31,
        rank=31,
        fields=dict(GLM),
        versions={"cudnn_frontend": cudnn_frontend},
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
    )
    text = "CUDA error: an illegal memory access was encountered"
    job.fault((65536, 65536), raised_in_kernel(RuntimeError(text)))
