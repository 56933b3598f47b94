"""``gcr data``: list, get, import and check data sets. Parses, calls, prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from gcr.cli.console import Console, err, out
from gcr.files import write_whole
from gcr.settings import BadInput

if TYPE_CHECKING:
    from gcr.data.cache import About
    from gcr.data.writing import Progress as Report

data_app = typer.Typer(
    name="data",
    help="The data sets: what is here, and how to have more.\n\n"
    "Example: `gcr data get cifar10`, then `gcr run seq-cifar10`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@data_app.command("list")
def list_sets() -> None:
    """The data sets, and which of them are here."""
    from gcr.data import CATALOG, data_root, own_names
    from gcr.data.catalog import commands

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("data set", "what it is", "here"):
        drawn.add_column(column, no_wrap=column == "data set")
    for known in CATALOG:
        drawn.add_row(known.name, known.summary, _state(known.name) or f"no; {commands(known.name)}")
    for name in own_names():
        drawn.add_row(name, "your own", _state(name))
    Console(width=None if out.is_terminal else 200).print(drawn)
    out.say(f"folder: {data_root()}")


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="See `gcr data list`.")],
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="Address of a folder with the same archives; checksums stay.")
    ] = None,
) -> int:
    """Download a data set's official archive, check it and import it. Run it again to go on after an interruption.

    Example: `gcr data get cifar10`
    """
    from gcr.data.importing import get_set

    try:
        with _bar() as progress:
            about = get_set(name, mirror, progress, _say)
    except KeyboardInterrupt:
        err.say("interrupted: the same command goes on where this one stopped", "red")
        return 130
    _print_about(about)
    return 0


@data_app.command("import")
def import_files(
    name: Annotated[str, typer.Argument(help="A name of `gcr data list`, or a new one for data of your own.")],
    paths: Annotated[list[Path], typer.Argument(help="A folder, an archive, or several files.", metavar="PATH")],
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto, cifar-binary, cifar-python, png-sheets, idx, tiny-imagenet, parquet or image-folder.",
        ),
    ] = "auto",
    size: Annotated[
        int,
        typer.Option(
            "--size", help="Resize pictures to this short side and cut out the middle square.", min=0, max=1024
        ),
    ] = 0,
    no_mirror: Annotated[
        bool,
        typer.Option("--no-mirror", help="Never mirror the pictures in training: for text, digits, left and right."),
    ] = False,
) -> None:
    """Read files that are already on this machine. A new name becomes a scenario of that name.

    Examples:

    `gcr data import cifar100 cifar-100-python.tar.gz`

    `gcr data import birds pictures/birds --size 64`, then `gcr run birds --set tasks=3`

    `gcr data import letters pictures/letters --no-mirror`
    """
    from gcr.data.importing import import_set

    with _bar() as progress:
        about = import_set(name, paths, format_name, size, progress, _say, mirrored=not no_mirror)
    _print_about(about)


@data_app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="All that are here if none is named.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write counts per class, channel means and hashes here.")
    ] = None,
) -> int:
    """Read data sets whole and prove hashes, counts per class and channel means.

    Exit code 1 if one is damaged, 2 if one is not there.

    Example: `gcr data check cifar10`
    """
    from gcr.data import CATALOG, data_root, is_cached, own_names
    from gcr.data.cache import absent, check_name
    from gcr.data.check import check_set

    here = [known.name for known in CATALOG if is_cached(known.name)] + own_names()
    if not names and not here:
        raise BadInput(f"there is no data set in {data_root()}; see: gcr data list")
    for name in names or []:
        check_name(name)
        if not is_cached(name):
            raise absent(name)
    found = []
    for name in names or here:
        with _bar() as progress:
            found.append(check_set(name, progress))
        for problem in found[-1].problems:
            err.say(f"{name}: {problem}", "red")
        if not found[-1].problems:
            _print_facts(name, found[-1].facts)
    if json_file is not None:
        _write_json(json_file, {one.name: one.facts for one in found if not one.problems})
    return 1 if any(one.problems for one in found) else 0


def _state(name: str) -> str:
    from gcr.data import is_cached, open_cached

    if not is_cached(name):
        return ""
    try:
        about = open_cached(name).about
    except BadInput as error:
        return str(error)
    return f"{sum(about.train)} + {sum(about.test)} images, {sum(about.bytes.values()) / 1e6:.0f} MB"


def _print_about(about: About) -> None:
    from gcr.data import data_root, find
    from gcr.data.source import times

    out.say(
        f"{about.name}: {len(about.class_names)} classes, {sum(about.train)} training and {sum(about.test)} test "
        f"images of {times(about.shape)}{', never mirrored' * (not about.mirrored)}, in {data_root() / about.name}"
    )
    scenario = about.name if find(about.name) is None else f"seq-{about.name}"
    out.say(f"train with: gcr run {scenario}")


def _print_facts(name: str, facts: dict[str, Any]) -> None:
    def spread(part: str) -> str:
        per_class = facts[part]["per_class"]
        low, high = min(per_class), max(per_class)
        return f"{facts[part]['examples']} ({low if low == high else f'{low} to {high}'} a class)"

    mean, std = (", ".join(f"{value:.4f}" for value in facts[key]) for key in ("mean", "std"))
    out.say(
        f"{name}: whole; {facts['classes']} classes, train {spread('train')}, test {spread('test')}, "
        f"mean {mean}, std {std}"
    )


def _write_json(file: Path, values: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json.dumps(values, indent=1) + "\n").encode())
    except OSError as error:
        raise BadInput(f"cannot write {file} ({error.strerror}); choose another --json") from None


def _say(line: str) -> None:
    err.say(line)


@contextmanager
def _bar() -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.redraws, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield report
