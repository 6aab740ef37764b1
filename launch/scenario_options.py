"""Arguments that subcommands on scenario files share, and how problems are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from harness.record.codec import to_jsonable
from launch.paths import PATH

if TYPE_CHECKING:
    from harness.scenario.problems import Problem

FORMATS = ("text", "github", "json")


def paths_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``PATH...``: scenario files, or folders of them.

    Whether a path exists is left to the loader, which reports all bad paths at once.
    """
    return click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)(command)


def show_problems(problems: Iterable[Problem], form: str, *, err: bool = False) -> None:
    """Print problems one a line, as ``file:line:column: message`` or as GitHub commands."""
    for problem in problems:
        click.echo(problem.github if form == "github" else str(problem), err=err)


def show_json(value: Any) -> None:
    """Print a document of plain data and dataclasses."""
    click.echo(json.dumps(to_jsonable(value), indent=2, ensure_ascii=False))


def count(number: int, noun: str) -> str:
    """Write a number with its noun, such as ``1 file`` or ``3 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
