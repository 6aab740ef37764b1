"""One case of the comparison between models and kernels, and running it on one side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.addresses import AddressFault
from harness.kernels.certify.cells import Cell, Look, compare
from harness.kernels.context import NotModelledError
from harness.kernels.failures import CompileFailure, KernelHang
from harness.kernels.flash_mla import NAME as FLASH_MLA
from harness.record.certificate import CaseState, CellDifference, CertifiedCase

ILLEGAL_ADDRESS = "illegal address"
HANG = "hang"
COMPILE_FAILURE = "compile failure"
RETURNED = "returned"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCase:
    """A call to give to both sides.

    Attributes:
        name: Unique; wrapper, rule, parameters.
        wrapper: Attribute of the namespace, or FlashMLA's function.
        basis: ``contract``, ``read``, ``reported`` or ``deduced``.
        rule: Rule or defect that it is about.
        build: Makes the keyword arguments: CPU tensors and plain values.
        look: Cells of a result.
        repeats: Calls on the kernel's side; each is compared, for what goes wrong rarely.
    """

    name: str
    wrapper: str
    basis: str
    rule: str
    build: Callable[[], dict[str, Any]]
    look: Look
    repeats: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What one side did with a call.

    Attributes:
        what: ``returned``, ``raised X``, ``illegal address``, ``hang``, ``compile failure``.
        cells: Of what it returned.
        text: Message of what it raised.
    """

    what: str
    cells: Mapping[str, Cell] | None = None
    text: str = ""


def run_case(
    case: KernelCase,
    model: Any,
    kernel: Any,
    *,
    device: str,
    synchronize: Callable[[], None],
    expecting: Callable[[Side], None] = lambda side: None,
) -> CertifiedCase:
    """Give a case to both sides and compare; a kernel's hang or fault ends the process instead.

    Args:
        case: The call.
        model: Namespace of the model (with ``flash_mla_sparse_fwd`` where FlashMLA is modelled).
        kernel: The namespace under test.
        device: Where the kernel's arguments go.
        synchronize: Waits for the device, so that a fault shows in the call that made it.
        expecting: Told what the model did before the kernel runs, which may not come back.
    """
    if not hasattr(kernel, case.wrapper):
        return case_record(case, Side(what="-"), Side(what="absent"), CaseState.NOT_COMPARED)
    try:
        expected = run_side(case, model, "cpu", lambda: None)
    except NotModelledError as error:
        return case_record(
            case,
            Side(what="not modelled"),
            Side(what="-"),
            CaseState.NOT_COMPARED,
            reason=str(error),
        )
    expecting(expected)
    found = run_side(case, kernel, device, synchronize)
    for _ in range(case.repeats - 1):
        if judge(expected, found)[0] is not CaseState.AGREES:
            break
        found = run_side(case, kernel, device, synchronize)
    return judged(case, expected, found)


def run_side(
    case: KernelCase, namespace: Any, device: str, synchronize: Callable[[], None]
) -> Side:
    """Run a case on one side.

    Raises:
        NotModelledError: from a model that does not cover the call.
        torch.AcceleratorError: a device fault; the process cannot go on.
    """
    arguments = case.build()
    given = {name: to_device(value, device) for name, value in arguments.items()}
    try:
        result = getattr(namespace, case.wrapper)(**given)
        synchronize()
    except AddressFault as error:
        return Side(what=ILLEGAL_ADDRESS, text=str(error))
    except KernelHang as error:
        return Side(what=HANG, text=str(error))
    except CompileFailure as error:
        return Side(what=COMPILE_FAILURE, text=str(error))
    except NotModelledError:
        raise
    except Exception as error:
        if is_device_fault(error):
            raise
        # A lost context may first show as an error of the launcher's own; the fault is this call's.
        synchronize()
        return Side(what=f"raised {_kind(error)}", text=str(error)[:400])
    named = _named(case.wrapper, result)
    # Arguments come back too: some wrappers write into them, and looks read them.
    after = {name: on_cpu(value) for name, value in given.items()}
    return Side(what=RETURNED, cells=case.look(named, {**arguments, **after}))


def is_device_fault(error: BaseException) -> bool:
    """Whether the device's context is lost with this error."""
    return isinstance(error, torch.AcceleratorError)


def _kind(error: Exception) -> str:
    """Name of the class that callers catch; subclasses of the DSL count as what they extend."""
    for kind in (ValueError, TypeError, AssertionError, NotImplementedError, AttributeError):
        if isinstance(error, kind):
            return kind.__name__
    return "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__


def _named(wrapper: str, result: Any) -> dict[str, Any]:
    if wrapper == FLASH_MLA:
        result = dict(zip(("out", "max_logits", "lse"), result, strict=False))
    elif not isinstance(result, Mapping):
        result = {"result": result}
    return {name: on_cpu(value) for name, value in dict(result).items()}


def on_cpu(value: Any) -> Any:
    """Return a tensor on the CPU with its memory layout, and anything else as it is."""
    return to_device(value, "cpu") if isinstance(value, torch.Tensor) else value


def to_device(value: Any, device: str) -> Any:
    """Copy a tensor with its strides and its offset in its storage: both decide alignment."""
    if not isinstance(value, torch.Tensor):
        return value
    whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())
    moved = whole.to(device, copy=True)
    return moved.as_strided(value.size(), value.stride(), value.storage_offset())


def judge(model: Side, kernel: Side) -> tuple[CaseState, tuple[CellDifference, ...]]:
    """Return the state of a case and where the sides differ."""
    if model.what == kernel.what:
        found = compare(model.cells, kernel.cells or {}) if model.cells is not None else ()
        return (CaseState.DIFFERS if found else CaseState.AGREES), found
    if model.what == ILLEGAL_ADDRESS and kernel.what == RETURNED:
        return CaseState.NOT_SHOWN, ()
    if model.what == COMPILE_FAILURE and kernel.what.startswith("raised "):
        return CaseState.AGREES, ()
    return CaseState.DIFFERS, (
        CellDifference(
            cell="what happens",
            model=_told(model),
            kernel=_told(kernel),
        ),
    )


def _told(side: Side) -> str:
    return f"{side.what}: {side.text}" if side.text else side.what


def judged(case: KernelCase, model: Side, kernel: Side) -> CertifiedCase:
    """Return the record of a case that ran on both sides."""
    state, differences = judge(model, kernel)
    reason = ""
    if state is CaseState.NOT_SHOWN:
        reason = f"the model says: {model.text}; the kernel returned, which proves nothing"
    return case_record(case, model, kernel, state, differences=differences, reason=reason)


def case_record(
    case: KernelCase,
    model: Side,
    kernel: Side,
    state: CaseState,
    *,
    differences: tuple[CellDifference, ...] = (),
    reason: str = "",
) -> CertifiedCase:
    """Write a case down."""
    if not reason and state is CaseState.NOT_COMPARED:
        reason = f"this build has no {case.wrapper}"
    return CertifiedCase(
        name=case.name,
        wrapper=case.wrapper,
        basis=case.basis,
        rule=case.rule,
        state=state,
        model=model.what,
        kernel=kernel.what,
        differences=differences,
        reason=reason,
    )
