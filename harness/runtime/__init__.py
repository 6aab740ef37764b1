"""Rank children, journals, phases and deadlines, supervision, and the leader of a run.

The modules that waiting workers and the torchrun entry need (``death``, ``world``, ``control``)
import the standard library alone, and so does this package's own ``__init__``.
"""
