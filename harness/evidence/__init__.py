"""Collectors: turn what the hooks saw of one forward into typed evidence.

Collectors read a ``Recorder`` after the forward; they never touch Megatron and never change what
it computes.
"""
