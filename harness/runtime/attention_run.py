"""What all microbatches of a run at level ``attention`` share, and one call of DSAttention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from harness.production.attention import attention_inputs, output_gradient, run_attention
from harness.production.backend import as_production
from harness.production.caller import StandInLayer
from harness.production.groups import Groups, GroupStore, entered
from harness.production.inputs import as_given
from harness.runtime.cases import Case, mask_of
from harness.runtime.engine import Stage
from harness.runtime.twins import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRun:
    """What all cases of a run share.

    Attributes:
        store: Groups of every effective size; those of the run alone without Dynamic CP.
        attention: The DSAttention under test.
        layer: What stands in for the layer around it, where the layer's own code is part of what
            runs; None where DSAttention is called directly.
        up_v: Latent-to-value projection.
        set_by: Who sets a microbatch's group where the layers look for it.
    """

    stage: Stage
    store: GroupStore
    role: Role
    attention: Any
    layer: StandInLayer | None
    up_v: torch.Tensor
    set_by: Literal["nobody", "harness", "layer"] = "nobody"

    @property
    def module(self) -> torch.nn.Module:
        """Outermost production module."""
        found: torch.nn.Module = self.attention if self.layer is None else self.layer
        return found

    @property
    def dynamic(self) -> bool:
        """Whether microbatches say which group they run on."""
        return self.stage.task.scenario.parallel.dynamic_context_parallel

    def trains(self, case: Case) -> bool:
        """Whether backward of a case runs."""
        return self.stage.task.scenario.training.backward and not case.spec.forward_only

    def groups_of(self, case: Case) -> Groups:
        """Groups that a case runs on."""
        if not self.dynamic:
            return self.store.configured
        return self.store.of(case.pack.cp_size, grouped=case.spec.cp_group == "real")

    @contextlib.contextmanager
    def group_set(self, groups: Groups) -> Iterator[None]:
        """Do around a call what its caller has to do about the group, if anything."""
        with contextlib.nullcontext() if self.set_by == "layer" else entered(groups):
            yield

    def inputs(self, case: Case) -> dict[str, torch.Tensor]:
        """Generate the rank's local inputs of a case."""
        scenario, source = self.stage.task.scenario, self.stage.source
        groups = self.groups_of(case)
        streams = [attention_inputs(scenario, s, case.pack, groups) for s in case.sources]
        batched = {name: torch.cat([s[name] for s in streams], dim=1) for name in streams[0]}
        given = {name: as_given(tensor, scenario.values) for name, tensor in batched.items()}
        return {name: as_production(tensor, source) for name, tensor in given.items()}

    def upstream(self, case: Case) -> torch.Tensor:
        """Seeded gradient of the output; a token's is the same at every CP size."""
        model, groups = self.stage.task.scenario.model, self.groups_of(case)
        parts = [output_gradient(model, source, case.pack, groups) for source in case.sources]
        return as_production(torch.cat(parts, dim=1), self.stage.source)

    def attend(
        self, case: Case, inputs: Mapping[str, torch.Tensor], up_v: torch.Tensor
    ) -> torch.Tensor:
        """Run the forward of a case; the caller sets the group."""
        groups = self.groups_of(case)
        group = groups.effective if groups.grouped else None
        return run_attention(
            self.attention,
            dict(inputs),
            up_v,
            case.pack if case.packed else None,
            real_token_mask=mask_of(case, groups.cp_rank),
            layer=self.layer,
            given_group=(groups.cp_size, group) if self.dynamic else None,
        )
