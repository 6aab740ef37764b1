"""The only door to Megatron-LM: find the build, construct it, hook it, run it.

``locate`` and ``probes`` read source files with the standard library alone, so that the control
side can answer questions about a build without importing torch. Everything else imports Megatron
and belongs to rank processes.
"""
