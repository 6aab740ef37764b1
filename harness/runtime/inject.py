"""Planted faults: ``--inject KIND@rank:phase[@scenario]``.

Process kinds are carried out here, when the named rank enters the named phase for the first time.
Selection kinds change what the top-k returns and are applied by the engine.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from harness.record.evidence import NEVER_STRUCK, NoteEvidence
from harness.record.phase import Phase
from harness.runtime.journal import Journal

PROCESS_KINDS = (
    "exception",
    "sigsegv",
    "sigkill",
    "sigstop",
    "sleep",
    "exit0",
    "extra_collective",
    "mismatched_shape",
    "oom",
    "address_fault",
    "device_fault",
)
"""Kinds that end or disturb the rank's process."""

SELECTION_KINDS = (
    "wrong_index",
    "past_limit",
    "neighbour_sequence",
    "key_on_padding",
    "next_past_empty",
    "duplicate_index",
    "unfused_path",
    "wrong_value",
    "slight_value",
    "wrong_gradient",
    "wrong_loss_group",
    "lost_gradient",
    "clamped_slots",
    "stale_memo",
    "double_build",
    "second_diagnostic",
    "host_read",
    "group_left",
    "config_left",
    "kept_output",
    "second_launch",
    "second_gradient",
    "chunk_picks",
    "group_kept",
    "static_rotary",
    "stale_layout",
    "later_selection",
)
"""Kinds that change the selection, the output or a gradient; the engine applies them."""

_MADE_IN = {
    "wrong_index": Phase.SELECT,
    "past_limit": Phase.SELECT,
    "neighbour_sequence": Phase.SELECT,
    "key_on_padding": Phase.SELECT,
    "next_past_empty": Phase.SELECT,
    "duplicate_index": Phase.SELECT,
    "unfused_path": Phase.SCORE,
    "wrong_value": Phase.ATTEND,
    "slight_value": Phase.ATTEND,
    "wrong_gradient": Phase.BACKWARD,
    "wrong_loss_group": Phase.BACKWARD,
    "lost_gradient": Phase.BACKWARD,
    "clamped_slots": Phase.ATTEND,
}
"""Phase in which the value is made that a kind changes; kinds that are not here strike always."""
_ORDER = {phase: place for place, phase in enumerate(Phase)}

OOM_BUDGET_BYTES = 256 * 2**20
"""Address space left to the rank before ``oom`` asks for four times as much."""

_SLEEP_S = 24 * 3600.0
_PATTERN = re.compile(r"(?P<kind>\w+)@(?P<rank>\d+):(?P<phase>\w+)(?:@(?P<scenario>.+))?")


class InjectionError(ValueError):
    """An ``--inject`` value cannot be read."""


class InjectedFaultError(RuntimeError):
    """The exception that ``exception`` raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One planted fault.

    Attributes:
        scenario: Only scenarios whose id holds this text; empty means all.
    """

    kind: str
    global_rank: int
    phase: Phase
    scenario: str = ""

    @property
    def is_process_kind(self) -> bool:
        """True when the runtime carries it out, False when the engine does."""
        return self.kind in PROCESS_KINDS

    def strikes(self, entered: Collection[Phase]) -> bool:
        """Tell whether the engine plants it in the case (microbatch and seed) about to run.

        From the named phase on: in a phase before the value is made, in this case already; in a
        later one, from the case on that follows the first to have come to it.

        Args:
            entered: Phases that the rank entered so far.
        """
        if self.is_process_kind:
            return False
        made_in = _MADE_IN.get(self.kind, Phase.RECORD)
        return _ORDER[self.phase] <= _ORDER[made_in] or self.phase in entered

    def __str__(self) -> str:
        """The spelling ``--inject`` takes."""
        tail = f"@{self.scenario}" if self.scenario else ""
        return f"{self.kind}@{self.global_rank}:{self.phase}{tail}"


def parse_injection(text: str) -> Injection:
    """Read ``KIND@rank:phase[@scenario]``.

    Raises:
        InjectionError: saying what was expected, with all valid names.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise InjectionError(
            "--inject: expected KIND@rank:phase[@scenario], such as sigsegv@1:score, "
            f"found {text!r}"
        )
    kinds = PROCESS_KINDS + SELECTION_KINDS
    if match["kind"] not in kinds:
        raise InjectionError(f"--inject: no kind {match['kind']!r}; use one of {', '.join(kinds)}")
    if match["phase"] not in set(Phase):
        names = ", ".join(Phase)
        raise InjectionError(f"--inject: no phase {match['phase']!r}; use one of {names}")
    return Injection(
        kind=match["kind"],
        global_rank=int(match["rank"]),
        phase=Phase(match["phase"]),
        scenario=match["scenario"] or "",
    )


def for_scenario(texts: Iterable[str], scenario_id: str) -> tuple[Injection, ...]:
    """Return the injections meant for a scenario, on any rank."""
    parsed = [parse_injection(text) for text in texts]
    return tuple(item for item in parsed if item.scenario in scenario_id)


def for_rank(texts: Iterable[str], scenario_id: str, global_rank: int) -> tuple[Injection, ...]:
    """Return the injections meant for one rank of a scenario."""
    found = for_scenario(texts, scenario_id)
    return tuple(item for item in found if item.global_rank == global_rank)


class PhaseInjector:
    """Journal observer that carries out the process kinds, each once."""

    def __init__(self, injections: Iterable[Injection], journal: Journal) -> None:
        self._due = [item for item in injections if item.is_process_kind]
        self._journal = journal

    def __call__(self, phase: Phase) -> None:
        """Carry out what is due at the start of ``phase``."""
        now = [item for item in self._due if item.phase is phase]
        self._due = [item for item in self._due if item.phase is not phase]
        for item in now:
            self._journal.fact("injecting", str(item))
            _ACTIONS[item.kind](self._journal)

    def note_unused(self) -> None:
        """Note what never came to be carried out: the run is healthier than it was meant to be."""
        for item in self._due:
            text = f"{item}: the rank never entered phase {item.phase}"
            self._journal.evidence(NoteEvidence(topic=NEVER_STRUCK, text=text))


def _exception(journal: Journal) -> None:
    raise InjectedFaultError(f"injected exception in phase {journal.current}")


def _signal_self(number: signal.Signals) -> Callable[[Journal], None]:
    def act(journal: Journal) -> None:
        os.kill(os.getpid(), number)

    return act


def _sleep(journal: Journal) -> None:
    time.sleep(_SLEEP_S)


def _exit0(journal: Journal) -> None:
    os._exit(0)


def _extra_collective(journal: Journal) -> None:
    import torch
    import torch.distributed as dist

    # On the default group, which production does not use: nobody ever joins.
    dist.all_reduce(torch.ones(1))


def _mismatched_shape(journal: Journal) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4099), group=journal.group)


def _oom(journal: Journal) -> None:
    import torch

    # Set relative to the present size: after the preload the address space alone is gigabytes.
    with open("/proc/self/statm") as stream:
        current = int(stream.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (current + OOM_BUDGET_BYTES, hard))
    torch.empty(4 * OOM_BUDGET_BYTES, dtype=torch.uint8)
    raise AssertionError("an allocation above RLIMIT_AS succeeded")


def _address_fault(journal: Journal) -> None:
    from harness.kernels.addresses import AddressFault
    from harness.record.evidence import AddressFaultEvidence

    raise AddressFault(
        AddressFaultEvidence(
            kernel="injected",
            operand="keys",
            row=0,
            index=-1,
            element_offset=-1,
            allowed=(0, 1),
            klass="past_tensor",
        )
    )


STRAY_WRITE = """
extern "C" __global__ void planted_stray_write(float* memory) { memory[1LL << 40] = 1.0f; }
"""
"""A write 4 TiB behind its tensor, which no address space maps."""


def _device_fault(journal: Journal) -> None:
    import torch

    from harness.production.errors import CapabilityMissingError

    if not torch.cuda.is_available():
        raise CapabilityMissingError("usable GPU (device_fault is a stray write on one)")
    kernel = torch.cuda._compile_kernel(STRAY_WRITE, "planted_stray_write")
    # Found at the end of the phase, as a fault of production's own kernels would be.
    kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.empty(1, device="cuda")])


_ACTIONS: dict[str, Callable[[Journal], None]] = {
    "exception": _exception,
    "sigsegv": _signal_self(signal.SIGSEGV),
    "sigkill": _signal_self(signal.SIGKILL),
    "sigstop": _signal_self(signal.SIGSTOP),
    "sleep": _sleep,
    "exit0": _exit0,
    "extra_collective": _extra_collective,
    "mismatched_shape": _mismatched_shape,
    "oom": _oom,
    "address_fault": _address_fault,
    "device_fault": _device_fault,
}
