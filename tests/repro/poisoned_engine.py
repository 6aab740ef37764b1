"""The engine with a planted fault: the first microbatch's layout is served to all later ones."""

from unittest import mock

from harness.runtime import engine


def execute(task, journal):
    from harness.production import attention

    real, first = attention.packed_seq_params, []

    def stale(pack, **given):
        first.append(real(pack, **given))
        return first[0]

    with mock.patch.object(attention, "packed_seq_params", stale):
        engine.execute(task, journal)
