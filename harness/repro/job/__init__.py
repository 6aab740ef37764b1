"""A folder to put on a training job's ``PYTHONPATH``: the recorder, and what switches it on.

Nothing here needs more than the standard library and torch, so the folder also works as a copy in
an image that has no harness. ``docs/capture.md`` says how.
"""
