"""``gcr results``: pack finished runs into one file, and list what a file holds. Parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcr.cli.console import out, print_names, warn_of_diverged, warn_of_unreadable
from gcr.cli.options import RunsArgument
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite another file.")] = False,
) -> int:
    """Write experiments and results of finished runs to one file; buffers and networks stay behind.

    Equal runs give equal bytes. Runs that cannot be read are named and left out (exit code 1).

    Examples:

    `gcr results pack runs/online results/online.jsonl.gz`

    `gcr results pack results/online.jsonl.gz runs/more-seeds results/online.jsonl.gz --force`
    """
    from gcr.analysis.pack import pack_runs
    from gcr.files import write_whole
    from gcr.runs.packed import SUFFIX

    if not file.name.endswith(SUFFIX):
        raise BadInput(f'FILE must end in {SUFFIX}, got "{file}"')
    packed = pack_runs(runs, metrics)
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
    out.print(
        f"{file}: {packed.n_runs} {'run' if packed.n_runs == 1 else 'runs'}, {len(packed.content):,} bytes",
        highlight=False,
        soft_wrap=True,
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
            out.print(printable(one.damage), style="red", markup=False, highlight=False, soft_wrap=True)
    if not checked:
        raise BadInput(f"nothing to check at {path}; give a folder of runs, a cache of data sets or a state")
    damaged = sum(bool(one.damage) for one in checked)
    old = sum(one.partly for one in checked)
    without = f"; {old} of an older gcr could be checked in part only" if old else ""
    out.print(f"{path}: {len(checked)} checked, {damaged} damaged{without}", highlight=False, soft_wrap=True)
    return int(damaged > 0)
