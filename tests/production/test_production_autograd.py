"""Autograd functions return one gradient per input: a faulty twin is seen, a healthy one is not."""

import pytest
import torch

from harness.production.autograd import GradientWatch, own_functions
from harness.reference.site import Site


class Scaled(torch.autograd.Function):
    """y = factor * x * gain.sum(), with as many gradients as inputs."""

    @staticmethod
    def forward(ctx, x, factor, gain):
        ctx.save_for_backward(x, gain)
        ctx.factor = factor
        return factor * x * gain.sum()

    @staticmethod
    def backward(ctx, grad):
        x, gain = ctx.saved_tensors
        gain_grad = (grad * ctx.factor * x).sum().expand_as(gain)
        return grad * ctx.factor * gain.sum(), None, gain_grad


class TooMany(Scaled):
    """One empty gradient more than there are inputs: torch drops it without a word."""

    @staticmethod
    def backward(ctx, grad):
        return (*Scaled.backward(ctx, grad), None)


class Forgetful(Scaled):
    """No gradient for an input that needs one: torch takes it for zero."""

    @staticmethod
    def backward(ctx, grad):
        first, none, _gain = Scaled.backward(ctx, grad)
        return first, none, None


class TooFew(Scaled):
    """One gradient short, which torch refuses."""

    @staticmethod
    def backward(ctx, grad):
        return Scaled.backward(ctx, grad)[:2]


def seen(function, *, times=1):
    watch = GradientWatch()
    watch.aim(Site(global_rank=1, cp_rank=1, seed=2))
    x, gain = (torch.ones(3, requires_grad=True) for _ in range(2))
    with watch.watching([function]):
        for _ in range(times):
            function.apply(x, 2.0, gain).sum().backward()
    (record,) = watch.evidence()
    assert tuple(watch.evidence()) == ()
    return record


def test_a_healthy_function_passes_with_every_call_counted():
    record = seen(Scaled, times=3)
    assert record.right
    assert (record.function, record.calls, record.inputs, record.gradients) == ("Scaled", 3, 3, 3)
    assert (record.global_rank, record.seed) == (1, 2)


def test_a_gradient_too_many_is_seen_although_torch_is_silent():
    record = seen(TooMany)
    assert (record.inputs, record.gradients, record.right) == (3, 4, False)


def test_an_input_left_without_its_gradient_is_named():
    record = seen(Forgetful)
    assert (record.missing, record.right) == (("gain",), False)


def test_a_gradient_too_few_is_recorded_before_torch_refuses():
    watch = GradientWatch()
    watch.aim(Site(global_rank=0, cp_rank=0))
    x, gain = (torch.ones(3, requires_grad=True) for _ in range(2))
    with (
        watch.watching([TooFew]),
        pytest.raises(RuntimeError, match="incorrect number of gradients"),
    ):
        TooFew.apply(x, 2.0, gain).sum().backward()
    (record,) = watch.evidence()
    assert (record.inputs, record.gradients, record.missing) == (3, 2, ("gain",))


def test_a_wrong_call_is_shown_however_many_right_ones_follow():
    watch = GradientWatch()
    watch.aim(Site(global_rank=0, cp_rank=0))
    x = torch.ones(3, requires_grad=True)
    with watch.watching([Forgetful]):
        Forgetful.apply(x, 2.0, torch.ones(3, requires_grad=True)).sum().backward()
        Forgetful.apply(x, 2.0, torch.ones(3)).sum().backward()
    (record,) = watch.evidence()
    assert (record.calls, record.missing) == (2, ("gain",))


def test_functions_are_put_back():
    before = {name: vars(cls).get("backward") for name, cls in _functions().items()}
    with GradientWatch().watching(_functions().values()):
        pass
    assert {name: vars(cls).get("backward") for name, cls in _functions().items()} == before


def _functions():
    class Inherits(Scaled):
        pass

    return {"Scaled": Scaled, "TooMany": TooMany, "Inherits": Inherits}


def test_the_functions_of_the_build_are_found():
    names = {function.__name__ for function in own_functions()}
    assert {
        "FusedDSAIndexerLoss",
        "DSAIndexerLossAutoScaler",
        "FusedIndexerSparseAttnFunc",
        "FusedQKTopKWithSparseLossFunc",
        "FusedSparseAttentionFunc",
    } <= names
