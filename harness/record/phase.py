"""Steps of a scenario on one rank."""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    """Named steps of a scenario on one rank; a journal line is written before each starts."""

    START = "start"
    RENDEZVOUS = "rendezvous"
    BUILD = "build"
    COMPILE = "compile"
    LAYOUT = "layout"
    GATHER = "gather"
    SCORE = "score"
    SELECT = "select"
    ATTEND = "attend"
    BACKWARD = "backward"
    CAPTURE = "capture"
    REPLAY = "replay"
    COMPARE = "compare"
    RECORD = "record"


SCENARIO_PHASES = tuple(Phase)[tuple(Phase).index(Phase.LAYOUT) :]
"""Phases covered by a scenario's ``limits.time_s``; the earlier ones have limits of their own."""
