"""Rules across the sections of a scenario, by noun; each says both numbers and what to change."""

from harness.scenario.rules.finding import Finding, Rule
from harness.scenario.rules.table import RULES, check

__all__ = ["RULES", "Finding", "Rule", "check"]
