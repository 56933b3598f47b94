"""``gcr results``: pack finished runs into one file, list what a file holds, train it again. Parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcr.cli.console import out, print_names, print_sheets, warn_of_diverged, warn_of_unreadable
from gcr.cli.options import (
    DeviceOption,
    NoModelOption,
    OutOption,
    PackOption,
    ProcessesOption,
    RunsArgument,
    ThreadsOption,
    read_pack,
    read_seeds,
)
from gcr.settings import BadInput, printable

results_app = typer.Typer(
    name="results",
    help="Finished runs in one small file, for a repository or to send.\n\n"
    "Example: `gcr results pack runs/online results/online.jsonl.gz`, then `gcr table results/online.jsonl.gz`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@results_app.command()
def pack(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs, or packed files to merge.", metavar="RUNS...")
    ],
    file: Annotated[Path, typer.Argument(help="File to write, ending in .jsonl.gz.")],
    metrics: Annotated[bool, typer.Option("--metrics", help="Keep the metrics of every epoch too.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take a run that is there twice from the last of RUNS.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite another file.")] = False,
) -> int:
    """Write experiments and results of finished runs to one file; buffers and networks stay behind.

    Equal runs give equal bytes. A run that is there twice with equal numbers counts once. Runs that cannot be read are
    named and left out (exit code 1).

    Examples:

    `gcr results pack runs/online results/online.jsonl.gz`

    `gcr results pack results/online.jsonl.gz runs/more-seeds results/online.jsonl.gz --force`

    `gcr results pack results/online.jsonl.gz runs/again results/online.jsonl.gz --replace --force`
    """
    from gcr.analysis.pack import pack_runs
    from gcr.files import write_whole
    from gcr.runs.packed import SUFFIX

    if not file.name.endswith(SUFFIX):
        raise BadInput(f'FILE must end in {SUFFIX}, got "{file}"')
    packed = pack_runs(runs, metrics, replace)
    for source in packed.sources:
        warn_of_unreadable(source)
        warn_of_diverged(source)
    try:
        if file.exists() and not force and file.read_bytes() != packed.content:
            raise BadInput(f"{file} exists and holds something else; give another name, or --force to overwrite it")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, packed.content)
    except OSError as error:
        raise BadInput(f"cannot write {file} ({error.strerror}); choose another file") from None
    replaced = f", {packed.n_replaced} replaced" if packed.n_replaced else ""
    out.say(
        f"{file}: {packed.n_runs} {'run' if packed.n_runs == 1 else 'runs'}{replaced}, {len(packed.content):,} bytes"
    )
    return int(any(source.unreadable for source in packed.sources))


@results_app.command("list")
def list_runs(path: RunsArgument) -> None:
    """The experiments at PATH: names as `gcr compare` takes them, and seeds.

    Example: `gcr results list results/online.jsonl.gz`
    """
    from gcr.analysis.load import read_runs

    runs = read_runs(path)
    warn_of_unreadable(runs)
    rows = sorted((str(group.folder), group.experiment.label, str(len(group.seeds))) for group in runs.groups)
    print_names("path", rows, third="seeds")


@results_app.command()
def repeat(
    path: RunsArgument,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Only these, as 0,1,2 or 0-4.")] = None,
    out_folder: OutOption = Path("repeat"),
    device: DeviceOption = "auto",
    pack: PackOption = "auto",
    processes: ProcessesOption = 0,
    threads: ThreadsOption = 1,
    no_model: NoModelOption = False,
) -> int:
    """Train the runs at PATH again, with their settings and seeds, and compare: for results that someone sent.

    On one device, with one version of gcr and torch, a CPU gives equal bits. On a GPU a
    repeated seed may end points of accuracy away: compare means over seeds.

    Examples:

    `gcr results repeat results/demo.jsonl.gz`

    `gcr results repeat results/demo.jsonl.gz/seq-digits-gcr-k100 --seeds 0`
    """
    from gcr.analysis import compare
    from gcr.analysis.load import read_runs
    from gcr.analysis.pack import name_below
    from gcr.cli import launch
    from gcr.runs.folder import RunFolder
    from gcr.runs.job import Execution, Job

    if out_folder.resolve().is_relative_to(path.resolve()):
        raise BadInput(f"--out must lie outside {path}, got {out_folder}")
    runs = read_runs(path)
    warn_of_unreadable(runs)
    wanted = None if seeds is None else set(read_seeds(seeds))
    pairs, recorded = [], []
    for group in runs.groups:
        mine = []
        for run, experiment, result in zip(group.runs, group.experiments, group.results, strict=True):
            if wanted is None or experiment.seed in wanted:
                folder = out_folder / name_below(run, path)
                if folder.resolve() == run.path.resolve():
                    raise BadInput(f"--out must not hold the runs at {path} themselves, got {out_folder}")
                mine.append(Job(experiment, RunFolder(folder)))
                recorded.append(result)
        if mine:
            pairs.append((group, mine))
    jobs = [job for _, mine in pairs for job in mine]
    if not jobs:
        raise BadInput(f"no run at {path} has one of the seeds {seeds}; leave --seeds out for all")
    how = Execution(device, pack=read_pack(pack), processes=processes, threads=threads, model=not no_model)
    there = sum(job.folder.finished for job in jobs)
    code = launch.train_and_show(jobs, out_folder, how)
    if again := [job.folder.result() for job in jobs if job.folder.finished]:
        notes = [
            "equal: the same accuracy on every task after every stage",
            f"recorded: {compare.made_with(recorded)}",
            f"again: {compare.made_with(again)}",
        ]
        if there:
            notes.append(f"{there} of {len(jobs)} were in {out_folder} before; another --out trains them anew")
        print_sheets([compare.repeated([(group, [job.folder for job in mine]) for group, mine in pairs])], notes)
    return code


def verify(
    path: Annotated[Path, typer.Argument(help="Runs, packed results, a cache of data sets, or a state.")],
) -> int:
    """Check every file at PATH against its digest and name what is damaged. Changes nothing.

    Exit code 1 if anything is damaged.

    Examples:

    `gcr verify runs`

    `gcr verify ~/.cache/gcr`
    """
    from gcr.analysis.verify import verify as check_files

    checked = []
    for one in check_files(path):
        checked.append(one)
        if one.damage:
            out.say(printable(one.damage), "red")
    if not checked:
        raise BadInput(f"nothing to check at {path}; give a folder of runs, a cache of data sets or a state")
    damaged = sum(bool(one.damage) for one in checked)
    old = sum(one.partly for one in checked)
    without = f"; {old} of an older gcr could be checked in part only" if old else ""
    out.say(f"{path}: {len(checked)} checked, {damaged} damaged{without}")
    return int(damaged > 0)
