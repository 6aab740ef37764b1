"""The command line: one flag table for both entries, and words that give it again."""

import shlex

import pytest

from harness.runtime.commands import rerun_run, rerun_scenario, run_words
from harness.runtime.options import FLAGS, Options, UsageError, parse_options
from harness.runtime.world import World

FULL = (
    "--scenario a.yaml b -k 'zigzag and not cp8' -t seed -t fast --dry-run --isolation group "
    "--supervision worker --megatron /m --evidence default,transfers --out out --name night "
    "--inject sigsegv@1:score --inject sleep@0:gather@multi --allow-mixed --bare --core-dumps "
    "--engine e:f --judge j"
)


def test_everything_is_parsed_and_comes_back_as_words():
    options = parse_options(shlex.split(FULL), "run")
    assert options == Options(
        scenarios=("a.yaml", "b"),
        keyword="zigzag and not cp8",
        tags=("seed", "fast"),
        dry_run=True,
        isolation="group",
        supervision="worker",
        megatron="/m",
        evidence="default,transfers",
        out="out",
        name="night",
        inject=("sigsegv@1:score", "sleep@0:gather@multi"),
        allow_mixed=True,
        bare=True,
        core_dumps=True,
        engine="e:f",
        judge="j",
    )
    assert parse_options(run_words(options), "run") == options


def test_every_flag_has_a_field():
    assert {flag.key for flag in FLAGS} | {"scenarios"} == set(Options.__slots__)


def test_underscores_are_read_as_dashes_in_flags_only():
    words = ["--dry_run", "--allow_mixed", "--out=my_runs", "--name", "a_b", "my_file.yaml"]
    options = parse_options(words, "run")
    assert options.dry_run and options.allow_mixed
    assert (options.out, options.name, options.scenarios) == ("my_runs", "a_b", ("my_file.yaml",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no scenario given; add --scenario PATH"),
        (["--unknown", "a.yaml"], "unrecognized arguments: --unknown"),
        (["a.yaml", "--isolation", "some"], "invalid choice: 'some'"),
        (["a.yaml", "--evidence", "transfer"], "no kind 'transfer'; use memo"),
        (["a.yaml", "--out", ""], "--out: the path is empty; is a variable of the shell unset?"),
        (["a.yaml", "--megatron="], "--megatron: the path is empty"),
        (["--resume", ""], "--resume: the path is empty"),
        ([""], "PATH: the path is empty"),
        (["a.yaml", "--inject", "sigsegv"], "expected KIND@rank:phase"),
        (["a.yaml", "--inject", "sigfoo@1:score"], "no kind 'sigfoo'; use one of exception, "),
        (["a.yaml", "--inject", "sigsegv@1:scoring"], "no phase 'scoring'; use one of start, "),
    ],
)
def test_mistakes_are_one_line_each(words, message):
    with pytest.raises(UsageError) as caught:
        parse_options(words, "run")
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]
    assert "\n" not in caught.value.problems[0]


def test_commands_to_run_again():
    options = parse_options(["--scenario", "my scenarios/a.yaml", "--out", "o", "-t", "seed"], "x")
    world = World(world_size=4, local_world_size=4, launcher="torchrun")
    run = shlex.split(rerun_run(world, options))
    assert run[:4] == ["torchrun", "--standalone", "--nproc-per-node", "4"]
    assert parse_options(run[5:], "x") == options
    one = shlex.split(rerun_scenario(world, options, "my scenarios/a.yaml:12", "a/b[cp4]"))
    again = parse_options(one[5:], "x")
    assert again.scenarios == ("my scenarios/a.yaml",)
    assert again.keyword == "=a/b[cp4]" and again.tags == () and again.out == "o"
    slurm = World(world_size=2, local_world_size=2, launcher="srun")
    assert shlex.split(rerun_run(slurm, options))[:2] == ["srun", "--ntasks=2"]


def test_a_resumed_run_takes_nothing_else():
    options = parse_options(["--resume", "runs/x", "--jobs", "auto", "--dry-run"], "x")
    assert (options.resume, options.jobs, options.scenarios) == ("runs/x", "auto", ())
    with pytest.raises(UsageError) as caught:
        parse_options(["a.yaml", "--resume", "runs/x", "--inject", "oom@0:score", "-k", "a"], "x")
    assert [p.split(" beside")[0] for p in caught.value.problems] == [
        "--resume runs/x: expected no PATH",
        "--resume runs/x: expected no -k",
        "--resume runs/x: expected no --inject",
    ]
    world = World(world_size=4, local_world_size=4, launcher="torchrun")
    again = shlex.split(rerun_run(world, options))
    assert parse_options(again[5:], "x") == options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--repeat", "0"), "--repeat: expected a number of at least 1, found '0'"),
        (("--repeat", "many"), "--repeat: expected a number of at least 1, found 'many'"),
        (("--jobs", "-1"), "--jobs: expected a number of at least 1 or auto, found '-1'"),
        (("--jobs", "all"), "--jobs: expected a number of at least 1 or auto, found 'all'"),
    ],
)
def test_numbers_of_attempts_and_jobs(words, message):
    with pytest.raises(UsageError, match=message):
        parse_options(["a.yaml", *words], "x")
    kept = parse_options(["a.yaml", "--repeat", "20", "--jobs", "3"], "x")
    assert (kept.repeat, kept.jobs) == (20, 3)
