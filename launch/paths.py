"""Paths on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class PathType(click.Path):
    """A path; an empty text is refused, which would name the current folder without a word.

    ``--out "$DIR"`` is empty where the variable is not set.
    """

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return the path, or fail with a message for the user."""
        if not os.fspath(value):
            self.fail("the path is empty; is a variable of the shell unset?", param, ctx)
        return super().convert(value, param, ctx)


PATH = PathType(path_type=Path)
PATH_TEXT = PathType()
"""The same, handed on as it was written."""
