"""Scenarios: the YAML file format, its checks, and the resolved form that ranks receive.

``spec`` and ``known`` are standard library only (ranks import them); ``schema`` needs pydantic and
is for the control side.
"""
