"""The build's own means for Dynamic CP: its arguments, its groups, and its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from harness.production import dynamic_cp
from harness.production.groups import GroupStore


@dataclass(frozen=True, kw_only=True)
class Part:
    """As much of a rank's groups as is looked at."""

    effective: Any


def build(monkeypatch, *, name: str | None, groups: dict[int, list[int]] | None = None) -> None:
    """Stand in for a build that names the feature so, and made these groups."""

    def initialize(tensor_model_parallel_size: int = 1) -> None: ...

    def dynamic(dynamic_context_parallel: bool = False) -> None: ...

    def hybrid(hybrid_context_parallel: bool = False) -> None: ...

    state = SimpleNamespace(
        initialize_model_parallel={None: initialize, "dynamic": dynamic, "hybrid": hybrid}[name]
    )
    if name is not None:
        get = f"get_{name}_data_context_parallel_groups"
        setattr(state, get, lambda group_size: (groups or {})[group_size])
    monkeypatch.setattr(dynamic_cp, "parallel_state", state)
    monkeypatch.setattr(
        dynamic_cp, "dist", SimpleNamespace(get_process_group_ranks=lambda group: list(group))
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, {}),
        ("dynamic", {"dynamic_context_parallel": True}),
        ("hybrid", {"hybrid_context_parallel": True}),
    ],
)
def test_groups_are_asked_for_by_the_build_s_own_name(monkeypatch, name, found):
    build(monkeypatch, name=name)
    assert dynamic_cp.group_arguments() == found


def store(**groups: tuple[int, ...]) -> GroupStore:
    by_size = {int(size[1:]): Part(effective=group) for size, group in groups.items()}
    return GroupStore(configured=None, by_size=by_size)  # type: ignore[arg-type]


def test_the_build_s_groups_take_the_place_of_the_harness_s(monkeypatch):
    own = [0, 1]
    build(monkeypatch, name="dynamic", groups={2: own})
    found = dynamic_cp.build_groups(store(s2=(0, 1)))
    assert found.by_size[2].effective is own


@pytest.mark.parametrize("name", [None, "hybrid"])
def test_where_the_build_has_no_group_of_a_size_the_harness_s_stays(monkeypatch, name):
    build(monkeypatch, name=name)
    kept = store(s1=(0,))
    assert dynamic_cp.build_groups(kept) == kept


def test_a_group_of_other_ranks_is_an_error(monkeypatch):
    build(monkeypatch, name="dynamic", groups={2: [0, 2]})
    with pytest.raises(AssertionError, match=r"ranks \[0, 2\], expected \[0, 1\]"):
        dynamic_cp.build_groups(store(s2=(0, 1)))


def test_a_configuration_ends_up_as_its_constructor_would_make_it():
    config = SimpleNamespace(dynamic_context_parallel=False)
    dynamic_cp.set_dynamic(config)
    assert vars(config) == {
        "dynamic_context_parallel": True,
        "min_dynamic_context_parallel_size": 1,
        "sequence_packing_scheduler": "default_dynamic_cp",
        "variable_seq_lengths": True,
    }
    made = SimpleNamespace(dynamic_context_parallel=True)
    dynamic_cp.set_dynamic(made)
    assert vars(made) == {"dynamic_context_parallel": True}
