"""Facts about a build or its kernels that `known` rules may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A probed property of a build or its kernels: its possible values and their meaning."""

    values: tuple[bool | str, ...]
    doc: str


_YES_NO = (True, False)


FACTS = {
    "passes_causal_offsets": Fact(
        values=_YES_NO, doc="Megatron's caller passes q_causal_offsets to the scoring kernel."
    ),
    "accepts_causal_offsets": Fact(
        values=_YES_NO, doc="The scoring kernel's forward accepts q_causal_offsets."
    ),
    "mask_alignment": Fact(
        values=("top_left", "bottom_right"),
        doc="Where the scoring kernel aligns its causal mask without offsets.",
    ),
    "reports_unfused_plan": Fact(
        values=_YES_NO, doc="The build reports an unfused scoring plan in its log."
    ),
    "has_host_layout": Fact(
        values=_YES_NO, doc="The build can make layout tables from lengths on the host."
    ),
    "has_layout_memo": Fact(
        values=_YES_NO, doc="Layout tables of a microbatch are kept and reused by later layers."
    ),
    "has_scoring_plan": Fact(
        values=_YES_NO, doc="The build names its scoring plan and the reason for it."
    ),
    "has_dynamic_cp": Fact(
        values=_YES_NO, doc="The build's configuration knows dynamic_context_parallel."
    ),
    "warns_packed_cp_graphs": Fact(
        values=_YES_NO, doc="The build warns of packed DSA with CP under CUDA graphs."
    ),
    "says_global_ids": Fact(
        values=_YES_NO, doc="Megatron's caller says that ids of indexer backward are global."
    ),
    "refuses_device": Fact(
        values=_YES_NO, doc="The build refuses a scoring call over several devices."
    ),
    "refuses_dtype": Fact(values=_YES_NO, doc="The build refuses a scoring call of mixed dtypes."),
    "refuses_view": Fact(values=_YES_NO, doc="The build refuses strided views in a scoring call."),
    "refuses_tp_slice": Fact(
        values=_YES_NO, doc="The build refuses a part of the indexer's heads in a scoring call."
    ),
    "refuses_gradient_arity": Fact(
        values=_YES_NO, doc="The build checks the number of gradients of its fused function."
    ),
    "refuses_missing_bounds": Fact(
        values=_YES_NO, doc="The build refuses a scoring call with starts or ends alone."
    ),
    "offers_layout_facts": Fact(
        values=_YES_NO, doc="The dispatcher offers backend hooks facts of a pack whatever CP is."
    ),
}
"""Probed fact names that ``known`` rules may ask for."""
