"""Exact reference: scorer, tie-aware judgement of a selection, and predictions of known faults.

Torch only, no Megatron. Nothing here runs the kernel under test, and no function holds a full score
matrix: the work goes by chunks of rows, and each row is scored against its own sequence only.
"""
