"""A broken call is told with its ranks, the change, and the kernels it came to."""

from __future__ import annotations

from dataclasses import replace

from sample_records import crash

from harness.record.perturb import PerturbEvidence
from reports.findings import findings
from reports.perturbed import perturbed_findings


def broken(rank: int, *kernels: str, declined: bool = False) -> PerturbEvidence:
    return PerturbEvidence(
        global_rank=rank,
        cp_rank=rank,
        microbatch=0,
        layer=1,
        seed=0,
        fact="device",
        call="dispatch_attention",
        arguments=("k_indexer",),
        change="device of its peers became cuda:1",
        kernels=kernels,
        declined=declined,
    )


def test_ranks_that_came_equally_far_share_a_sentence():
    items = [broken(0), broken(1), broken(2, "indexer_forward"), broken(3, declined=True)]
    texts = [finding.text for finding in perturbed_findings(items)]
    change = "device: k_indexer of dispatch_attention (device of its peers became cuda:1)"
    assert texts == [
        f"{change} on global_rank 0, 1; no kernel called",
        f"{change} on global_rank 2; kernels called: indexer_forward",
        f"{change} on global_rank 3; declined, then no kernel called",
    ]


def test_the_sentence_stands_in_the_block_of_a_failure():
    result = crash()
    attempt = replace(result.last, perturbations=(broken(1, "indexer_forward"),))
    told = findings(replace(result, attempts=(attempt,)))
    assert [f.label for f in told].count("perturbed") == 1
    assert [f.label for f in findings(result)].count("perturbed") == 0
