"""What a run leaves behind: verdicts, typed evidence, environment and attempts, as plain JSON.

Standard library only, so that ranks, leaders and report writers can all read and write records
without importing torch or pydantic.
"""
