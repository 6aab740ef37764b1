"""When a planted fault strikes, and what is said of one that never does."""

import pytest

from harness.record.evidence import NEVER_STRUCK, NoteEvidence
from harness.record.phase import Phase
from harness.runtime.inject import (
    PROCESS_KINDS,
    SELECTION_KINDS,
    InjectedFaultError,
    PhaseInjector,
    parse_injection,
)
from harness.runtime.journal import Journal, read_journal

BEFORE = {Phase.START, Phase.RENDEZVOUS, Phase.BUILD, Phase.LAYOUT}
"""What a rank entered when its first case begins."""


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("wrong_index@1:gather", True, True),
        ("wrong_index@1:select", True, True),
        ("wrong_index@1:compare", False, True),
        ("unfused_path@1:score", True, True),
        ("unfused_path@1:select", False, True),
        ("wrong_value@1:attend", True, True),
        ("wrong_gradient@1:backward", True, True),
        ("wrong_gradient@1:capture", False, False),
        ("stale_memo@1:record", True, True),
        ("sigsegv@1:layout", False, False),
    ],
)
def test_a_kind_that_changes_values_strikes_from_its_phase_on(text, first, second):
    injection = parse_injection(text)
    everything = BEFORE | {Phase.GATHER, Phase.SELECT, Phase.ATTEND, Phase.COMPARE, Phase.RECORD}
    assert injection.strikes(BEFORE) is first
    assert injection.strikes(everything) is second


def test_every_kind_can_be_spelled():
    for kind in PROCESS_KINDS + SELECTION_KINDS:
        assert str(parse_injection(f"{kind}@0:select@a/b")) == f"{kind}@0:select@a/b"


@pytest.fixture
def injected(tmp_path):
    """Enter phases under an injection; return the notes that the journal holds in the end."""

    def enter(text, *phases):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        journal = Journal(path, global_rank=0)
        injector = PhaseInjector([parse_injection(text)], journal)
        journal.observers.append(injector)
        try:
            for phase in phases:
                journal.phase(phase)
            injector.note_unused()
        finally:
            journal.close()
        return read_journal(path, global_rank=0).of(NoteEvidence)

    return enter


def test_a_fault_whose_phase_never_came_is_noted(injected):
    (note,) = injected("exception@0:backward", Phase.LAYOUT, Phase.COMPARE)
    assert note.topic == NEVER_STRUCK
    assert note.text == "exception@0:backward: the rank never entered phase backward"
    assert not injected("wrong_index@0:backward", Phase.LAYOUT)


def test_a_fault_strikes_as_its_phase_begins(injected):
    with pytest.raises(InjectedFaultError, match="in phase compare"):
        injected("exception@0:compare", Phase.LAYOUT, Phase.COMPARE)
