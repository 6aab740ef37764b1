"""Waits and copies are seen with their line in the build; each kind beside what does not wait."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)
from harness.production.locate import find_build
from harness.production.look_alike import DEVICE, LookAlike, module_on_device, to_device, to_host
from harness.production.transfers import LayerClock, look_alike_traffic
from harness.record.transfers import TransferSite

BUILDER = "megatron/core/transformer/experimental_attention_variant/dsa_layout.py"
CODE = """
import torch

def run(x, mask, host):
    {line}
"""


def traffic_of(folder: Path, line: str) -> tuple[TransferSite, ...]:
    """Waits and copies of one line in a build of its own."""
    source = folder / "megatron" / "part.py"
    source.parent.mkdir(exist_ok=True)
    source.write_text(CODE.format(line=line))
    spec = importlib.util.spec_from_file_location("part", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with look_alike_traffic(folder, lambda: (1, "layout")) as traffic:
        x = torch.arange(6, device="cuda")
        mask = x > 2
        module.run(x, mask, torch.arange(6))
    return traffic.sites().get(1, ())


@pytest.mark.parametrize(
    ("line", "kind", "operation"),
    [
        ("x.sum().item()", "host_read", "aten._local_scalar_dense"),
        ("bool(mask.any())", "host_read", "aten._local_scalar_dense"),
        ("x.tolist()", "to_host", "aten._to_copy"),
        ("x.cpu()", "to_host", "aten._to_copy"),
        ("mask.nonzero()", "data_shape", "aten.nonzero"),
        ("x[mask]", "data_shape", "aten.index.Tensor"),
        ("torch.repeat_interleave(x, x)", "data_shape", "aten.repeat_interleave.Tensor"),
        ("torch.unique(x)", "data_shape", "aten._unique2"),
        ("torch.tensor([1, 2], device='cuda')", "to_device", "aten._to_copy"),
        ("x.copy_(host)", "to_device", "aten.copy_"),
        ("torch.cuda.synchronize()", "wait", "torch.cuda.synchronize"),
    ],
)
def test_each_kind_is_seen_with_its_line(tmp_path, line, kind, operation):
    (site,) = traffic_of(tmp_path, line)
    assert (site.kind, site.operation) == (kind, operation)
    assert (site.site, site.function, site.phase) == ("megatron/part.py:5", "run", "layout")


@pytest.mark.parametrize(
    "line",
    [
        "x + x",
        "x[2:]",
        "x[x]",
        "x[mask] = 0",
        "torch.where(mask, x, x)",
        "torch.repeat_interleave(x, x, output_size=15)",
        "torch.arange(6, device='cuda')",
        "torch.zeros(3, device='cuda').add_(1)",
        "x.to('cuda')",
        "host.sum().item()",
        "host.nonzero()",
    ],
)
def test_what_does_not_wait_is_not_counted(tmp_path, line):
    assert traffic_of(tmp_path, line) == ()


def test_pinned_and_blocking_are_told_apart(tmp_path):
    (pageable,) = traffic_of(tmp_path, "host.to('cuda')")
    assert (pageable.pinned, pageable.blocking, pageable.bytes) == (False, True, 48)
    (pinned,) = traffic_of(tmp_path, "host.pin_memory().cuda(non_blocking=True)")
    assert (pinned.pinned, pinned.blocking) == (True, False)
    assert not pinned.hang_risk


def test_reads_of_a_kernel_model_are_nobodys(tmp_path):
    (tmp_path / "harness" / "kernels").mkdir(parents=True)
    stand_in = tmp_path / "harness" / "kernels" / "stand_in.py"
    stand_in.write_text("def read(x):\n    return x.sum().item()\n")
    line = "import runpy; read = runpy.run_path('" + str(stand_in) + "')['read']; read(x); x.max()"
    assert traffic_of(tmp_path, line) == ()


@pytest.mark.parametrize("cp_size", [2, 4, 8])
def test_the_released_layout_builder_waits_five_times_for_each_rank_and_the_query(cp_size):
    layout = pytest.importorskip(
        "megatron.core.transformer.experimental_attention_variant.dsa_layout"
    )
    with look_alike_traffic(find_build().root, lambda: (1, "layout")) as traffic:
        bounds = torch.tensor([0, 128, 192, 256], dtype=torch.int32, device="cuda")
        positions, reorder = layout.build_packed_allgather_cp_query_positions_and_key_reorder(
            bounds, bounds, cp_size, 0, DEVICE, 256 // cp_size, 256 // cp_size, 256
        )
    sites = traffic.sites()[1]
    waits = [site for site in sites if site.synchronises]
    assert sum(site.count for site in waits) == 5 * (cp_size + 1)
    lines = {site.site: site.count for site in waits}
    assert lines == {f"{BUILDER}:{line}": cp_size + 1 for line in (249, 250, 251, 278, 279)}
    (copy,) = [site for site in sites if not site.synchronises]
    assert (copy.kind, copy.site, copy.count) == ("to_device", f"{BUILDER}:290", cp_size + 1)
    assert (copy.pinned, copy.blocking) == (False, True)
    host = torch.tensor([0, 128, 192, 256], dtype=torch.int32)
    due, due_order = layout.build_packed_allgather_cp_query_positions_and_key_reorder(
        host, host, cp_size, 0, torch.device("cpu"), 256 // cp_size, 256 // cp_size, 256
    )
    assert torch.equal(to_host(positions), due)
    assert torch.equal(to_host(reorder), due_order)


def test_a_module_is_on_the_device_for_a_while_and_its_data_can_be_swapped():
    module = torch.nn.Linear(4, 4)
    weight = module.weight
    with look_alike_traffic(Path("/nowhere"), lambda: (1, "layout")), module_on_device(module):
        out = module(to_device(torch.ones(2, 4)))
        assert isinstance(out, LookAlike)
        assert out.is_cuda
        swapped = torch.empty((1,), device="cuda")
        swapped.data = out
        assert swapped.shape == (2, 4)
        assert torch.equal(to_host(swapped), to_host(out))
        module.kept = out
    assert module.weight is weight
    assert type(module.kept) is torch.Tensor


def test_the_layer_at_work_is_the_outermost_numbered_part():
    inner, outer = torch.nn.Linear(2, 2), torch.nn.Sequential()
    inner.layer_number, outer.layer_number = 7, 3
    seen = []
    clock = LayerClock()
    inner.register_forward_pre_hook(lambda *_: seen.append(clock.layer))
    outer.append(inner)
    whole = torch.nn.Sequential(outer)
    with clock.over(whole):
        assert clock.layer == 0
        whole(torch.ones(1, 2))
        assert (seen, clock.layer) == ([3], 0)
    whole(torch.ones(1, 2))
    assert seen == [3, 0]
