"""An evaluator without processes: a rule tells which scenarios are faulty."""

from dataclasses import replace

from harness.record.codec import to_jsonable
from harness.record.evidence import ExceptionEvidence
from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.record.result import (
    Attempt,
    FaultReport,
    RankOutcome,
    ScenarioResult,
)
from harness.record.verdict import Outcome, Verdict
from harness.scenario.model_files import ModelLibrary
from harness.scenario.spec import MicrobatchSpec, ParallelSpec, Scenario

PATH = PathEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    layer=1,
    seed=0,
    backend="none",
    plan="none",
    plan_source="inferred",
    reason="",
    scorer="unfused",
    fused=False,
)


def passed():
    return Attempt(number=1, verdict=Verdict.PASS, paths=(PATH,))


def crashed(kind="ValueError"):
    raised = ExceptionEvidence(type=kind, text="planted", traceback="", origin="build")
    return Attempt(
        number=1,
        verdict=Verdict.CRASH,
        ranks=(RankOutcome(global_rank=0, exception=raised),),
        fault=FaultReport(
            verdict=Verdict.CRASH, global_rank=0, phase=Phase.SELECT, cause="planted"
        ),
    )


def missing():
    return Attempt(number=1, verdict=Verdict.NOT_RUN, missing_capability="a GPU")


def result(scenario, attempt):
    outcome = Outcome.UNEXPECTED
    if attempt.verdict is scenario.expect.verdict:
        outcome = Outcome.EXPECTED
    if attempt.verdict is Verdict.NOT_RUN:
        outcome = Outcome.NOT_RUN
    return ScenarioResult(
        id=scenario.id,
        content_hash=scenario.content_hash,
        summary=scenario.summary,
        scenario=to_jsonable(scenario),
        attempts=(attempt,),
        outcome=outcome,
        expected=str(scenario.expect.verdict),
    )


class Fake:
    """Answers by ``rule(scenario, processes)``, where processes lists what ran in them before."""

    def __init__(self, rule):
        self.rule = rule
        self.before = []
        self.seen = []

    def evaluate(self, scenario, *, alone=False):
        if alone:
            self.before = []
        answer = self.rule(scenario, self.before)
        self.before.append(scenario)
        self.seen.append(scenario)
        return result(scenario, answer)


def scenario(**changes):
    small = ModelLibrary().get("small")
    given = {
        "id": "case/large",
        "summary": "A large case.",
        "model": replace(small, dsa_indexer_topk=64),
        "parallel": ParallelSpec(context_parallel_size=4),
        "microbatches": (
            MicrobatchSpec(sequences=(512, 100, 0, 37), padded=(512, 112, 8, 40)),
            MicrobatchSpec(sequences=(256, 256), tail_padding=8),
            MicrobatchSpec(sequences=(64,)),
        ),
    }
    return Scenario(**{**given, **changes})
