"""``dsa-harness submit``: scenarios as Slurm jobs, few of them, with scripts that can be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.record.verdict import ExitCode
from harness.runtime.options import FLAGS, Flag
from launch.paths import PATH
from launch.run_command import flag_options

if TYPE_CHECKING:
    from launch.slurm.cluster import Cluster
    from launch.slurm.parts import Group
    from launch.slurm.script import Job
    from launch.slurm.submission import Submission

PROJECT_ROOT = Path(__file__).resolve().parents[1]
_OWN = frozenset({"out", "name", "dry_run", "resume", "ids"})
"""Flags of a run that a submission sets itself."""
_CLUSTER_FLAGS = (
    ("--partition", "Partition."),
    ("--account", "Account."),
    ("--qos", "Quality of service."),
    ("--time", "Time limit of each job, such as 04:00:00."),
    ("--constraint", "Node features."),
    ("--reservation", "Reservation."),
    ("--exclude", "Nodes that are not to be used."),
    ("--mem", "Memory of a node."),
)


class SubmitError(click.ClickException):
    """Nothing was submitted; one line per problem, exit code 2."""

    exit_code = int(ExitCode.USAGE)


def _cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    for name, text in reversed(_CLUSTER_FLAGS):
        command = click.option(name, metavar="VALUE", help=text)(command)
    return command


@click.command(name="submit")
@click.argument("paths", metavar="SCENARIO...", nargs=-1)
@click.option("--cluster", "cluster_file", type=PATH, metavar="FILE",
              help="What the cluster is like, such as configs/clusters/gb200.yaml.")  # fmt: skip
@click.option("--out", type=PATH, default=Path("submissions"),
              show_default=True, metavar="DIR", help="Folder of submissions (shared).")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the jobs (default: from the first path).")
@click.option("--array", "num_parts", type=click.IntRange(min=1), default=1, metavar="N",
              help="Deal the scenarios of each node count out to an array of N jobs.")  # fmt: skip
@click.option("--throttle", type=click.IntRange(min=1), metavar="N",
              help="Array elements that run at the same time.")  # fmt: skip
@click.option("--dependency", metavar="SPEC", help="As sbatch takes it, such as afterany:123.")
@click.option("--exclusive/--no-exclusive", default=None, help="Ask for whole nodes.")
@click.option("--sbatch-arg", multiple=True, metavar="ARG", help="Anything else (repeatable).")
@click.option("--dry-run", is_flag=True, help="Write the scripts, and submit nothing.")
@click.option("--again", type=PATH, metavar="SUBMISSION",
              help="Submit what this submission has not finished, without lost nodes.")  # fmt: skip
@_cluster_options
@flag_options(without=_OWN)
def submit(
    paths: tuple[str, ...],
    cluster_file: Path | None,
    out: Path,
    name: str | None,
    num_parts: int,
    throttle: int | None,
    dependency: str | None,
    exclusive: bool | None,
    sbatch_arg: tuple[str, ...],
    dry_run: bool,
    again: Path | None,
    **values: Any,
) -> int:
    """Write job scripts for scenarios and submit them.

    Scenarios are grouped by the nodes they need; each group is one job, or one array. Prints the
    folder of the submission, which `jobs`, `wait`, `cancel` and `collect` take.
    """
    from launch.slurm.cluster import ClusterError, changed, read_cluster

    if cluster_file is None:
        raise SubmitError("no --cluster given; add one, such as configs/clusters/gb200.yaml")
    overrides = {flag[2:]: values.pop(flag[2:]) for flag, _ in _CLUSTER_FLAGS}
    try:
        cluster = changed(read_cluster(cluster_file), {**overrides, "exclusive": exclusive})
    except ClusterError as error:
        raise SubmitError(str(error)) from error
    extra = {"dependency": dependency, "sbatch": sbatch_arg}
    if again is not None:
        _submit_again(again, cluster, extra, dry_run=dry_run)
    else:
        submit_paths(
            paths,
            cluster,
            out,
            values=values,
            name=name,
            num_parts=num_parts,
            throttle=throttle,
            extra=extra,
            dry_run=dry_run,
        )
    return int(ExitCode.OK)


def submit_paths(
    paths: tuple[str, ...],
    cluster: Cluster,
    out: Path,
    *,
    values: Mapping[str, Any] | None = None,
    name: str | None = None,
    num_parts: int = 1,
    throttle: int | None = None,
    extra: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> Path:
    """Submit scenarios and return the submission's folder.

    Args:
        paths: Scenario files, folders and suites.
        cluster: What the cluster is like.
        out: Folder of submissions.
        values: Flags of the run by field of ``Options``; those left out are not given.
        name: Name of the jobs, by default from the first path.
        num_parts: Array elements for each node count.
        throttle: Array elements that run at the same time.
        extra: Further fields of ``Job``.
        dry_run: Write the scripts, and submit nothing.

    Raises:
        SubmitError: with one line per problem; nothing is submitted then.
    """
    from harness.runtime.commands import option_words
    from harness.runtime.options import UsageError, make_options
    from harness.runtime.plan import select
    from harness.scenario.loader import load
    from launch.slurm.parts import deal, node_hours
    from launch.slurm.submission import Submission, SubmissionError, make_folder

    given = {flag.key: _not_given(flag) for flag in FLAGS} | dict(values or {})
    try:
        options = make_options(paths, given, "dsa-harness submit")
        loaded = load(options.scenarios)
        if not loaded.ok:
            raise UsageError([str(problem) for problem in loaded.problems])
        chosen = [item.scenario for item in select(loaded.scenarios, options)]
    except UsageError as error:
        raise SubmitError("\n".join(error.problems)) from error
    groups = deal(
        chosen,
        ranks_per_node=cluster.ranks_per_node,
        parts_per_group=num_parts,
        throttle=throttle,
    )
    label = name or Path(paths[0]).resolve().stem
    try:
        folder = make_folder(out, label, groups)
    except SubmissionError as error:
        raise SubmitError(str(error)) from error
    submission = Submission(
        name=label,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster=cluster.cluster,
        scenarios=tuple(str(Path(path).resolve()) for path in options.scenarios),
        run_words=tuple(option_words(options)),
        parts=tuple(part for group in groups for part in group.parts),
    )
    click.echo(
        f"{len(chosen)} scenarios in {sum(len(g.parts) for g in groups)} part(s), "
        f"at most {node_hours(groups):.1f} node-hours by their own limits"
    )
    jobs = [_job(submission, cluster, folder, group, extra or {}) for group in groups]
    try:
        _send(folder, submission, jobs, dry_run=dry_run, prefix="job")
    except SubmitError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _not_given(flag: Flag) -> Any:
    if flag.many:
        return ()
    return False if flag.metavar is None else None


def _job(
    submission: Submission, cluster: Cluster, folder: Path, group: Group, extra: Mapping[str, Any]
) -> Job:
    from launch.slurm.script import Job

    return Job(
        name=f"dsa-{submission.name}",
        cluster=cluster,
        group=group,
        folder=str(folder),
        project=cluster.project or str(PROJECT_ROOT),
        scenarios=submission.scenarios,
        run_words=submission.run_words,
        exclude=submission.suspects,
        **extra,
    )


def _send(
    folder: Path, submission: Submission, jobs: list[Job], *, dry_run: bool, prefix: str
) -> None:
    """Write scripts and record, then submit."""
    from launch.slurm.client import Slurm
    from launch.slurm.submission import (
        SubmissionError,
        submit_all,
        with_jobs,
        write_scripts,
        write_submission,
    )

    try:
        scripts = write_scripts(folder, jobs, prefix=prefix)
        write_submission(folder, submission)
    except OSError as error:
        raise SubmitError(f"{folder}: {error.strerror}; nothing was submitted") from error
    if dry_run:
        for script in scripts:
            click.echo(f"written: {script}")
        click.echo("nothing was submitted")
        click.echo(f"submission folder {folder}")
        return
    try:
        done = submit_all(Slurm(), jobs, scripts, click.echo)
    except SubmissionError as error:
        raise SubmitError(str(error)) from error
    write_submission(folder, with_jobs(submission, done))
    click.echo(f"submission folder {folder}")


def _submit_again(
    folder: Path, cluster: Cluster, extra: Mapping[str, Any], *, dry_run: bool
) -> None:
    """Submit the parts that have not come to their end, without the nodes that were lost."""
    from harness.runtime.run_lock import forget_leader
    from launch.slurm.client import Slurm, SlurmError
    from launch.slurm.parts import Group
    from launch.slurm.progress import PartState, progress
    from launch.slurm.submission import SubmissionError, read_submission

    slurm = Slurm()
    try:
        submission = read_submission(folder)
        states = slurm.states([job.id for job in submission.jobs])
    except (SubmissionError, SlurmError) as error:
        raise SubmitError(str(error)) from error
    stands = progress(folder.resolve(), submission, states)
    due = {p.number for p in stands if p.over and p.state is not PartState.DONE}
    # What was never submitted waits for nothing.
    due |= {p.number for p in stands if p.slurm is None}
    if not due:
        click.echo("nothing to submit: every part is done, or still has its job")
        return
    lost = [p for p in stands if p.state is PartState.LOST and p.slurm is not None]
    suspects = set(submission.suspects)
    for stand in lost:
        suspects |= set(_lost_nodes(slurm, stand.slurm.nodes if stand.slurm else ""))
    submission = replace(submission, suspects=tuple(sorted(suspects)))
    for stand in stands:
        if stand.number in due and stand.run is not None:
            # Slurm says that its job is over: no leader needs to be waited for.
            forget_leader(stand.run)
    by_nodes: dict[int, list[Any]] = {}
    for part in submission.parts:
        if part.number in due:
            by_nodes.setdefault(part.nodes, []).append(part)
    # One job for each part: their numbers need not follow each other, as an array's would.
    groups = [Group(nodes=n, parts=(part,)) for n in sorted(by_nodes) for part in by_nodes[n]]
    jobs = [_job(submission, cluster, folder.resolve(), group, extra) for group in groups]
    _send(
        folder.resolve(), submission, jobs, dry_run=dry_run, prefix=f"again-{len(submission.jobs)}"
    )


def _lost_nodes(slurm: Any, host_list: str) -> tuple[str, ...]:
    """Return the nodes of a lost job that Slurm itself no longer trusts; all of them if none is."""
    from launch.slurm.client import SlurmError

    try:
        nodes = slurm.nodes(host_list)
        down = slurm.output(
            ["sinfo", "-h", "-N", "-t", "down,drain,fail,unknown", "-o", "%N"]
        ).split()
    except SlurmError:
        return ()
    suspect = tuple(name for name in nodes if name in down)
    # A single node that is up again by now is the suspect all the same.
    return suspect or (nodes if len(nodes) == 1 else ())
