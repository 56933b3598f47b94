"""``gcr update``, ``gcr predict``, ``gcr inspect``: a classifier without code. Parses, calls, prints."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gcr.cli.console import err, out, print_whole, write
from gcr.cli.options import DeviceOption
from gcr.settings import BadInput, printable

if TYPE_CHECKING:
    from gcr.classifier.held_out import ClassAccuracy
    from gcr.classifier.update import Outcome
    from gcr.learner.state_folder import StateFolder

StateArgument = Annotated[Path, typer.Argument(help="Folder of the classifier.", metavar="STATE")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave out pictures that cannot be read.")]
FilesArgument = Annotated[
    list[Path], typer.Argument(help="Pictures, folders of pictures, or CSV, TSV or parquet files.", metavar="FILES")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for another update of the same state to end.")]
PathOption = Annotated[str | None, typer.Option("--path", help="Column of picture paths in a table.")]


def update(
    state: StateArgument,
    new: Annotated[
        Path | None,
        typer.Argument(
            help="A folder with a folder of pictures per class; or a CSV, TSV or parquet file with a label column and "
            "either a column of picture paths or columns of numbers.",
            metavar="NEW",
        ),
    ] = None,
    memory: Annotated[
        int,
        typer.Option("--memory", help="Examples kept in all, held-out ones too; 0: as before, 500 at first.", min=0),
    ] = 0,
    epochs: Annotated[
        int, typer.Option("--epochs", help="Passes over the new examples; 0: 10 to 100, by their number.", min=0)
    ] = 0,
    limit: Annotated[
        float,
        typer.Option(
            "--limit",
            help="The update is refused where the old classes lose more points of held-out accuracy than this on "
            "average, or one of them does and that is more than chance.",
            min=0,
            max=100,
        ),
    ] = 5.0,
    holdout: Annotated[
        float,
        typer.Option("--holdout", help="Share of new examples and of memory never trained on.", min=0.05, max=0.5),
    ] = 0.2,
    label: Annotated[
        str | None, typer.Option("--label", help="Label column of a table; if not given: label, class, target or y.")
    ] = None,
    path_column: PathOption = None,
    net: Annotated[
        str | None,
        typer.Option("--net", help="convnet, resnet18 or mlp; by the data if not given. Fixed by the first update."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", help="Side of the squares that pictures become. Fixed by the first update.", min=4, max=512
        ),
    ] = None,
    mirror: Annotated[
        bool,
        typer.Option(
            "--mirror/--no-mirror",
            help="Whether colour pictures are mirrored in training; not for text and signs. Fixed by the first update.",
        ),
    ] = True,
    skip_bad: SkipOption = False,
    wait: WaitOption = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Undo the last update.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the split, the order and the first weights.", min=0)] = 0,
    device: DeviceOption = "auto",
) -> int:
    """Make a classifier, or teach it new classes. Old pictures are not needed: a bounded memory keeps a few.

    Prints held-out accuracy of every class before and after. Exit code 1: the old classes would lose too much, and the
    state is unchanged.

    Examples:

    `gcr update birds new-pictures/`, then `gcr update birds more-pictures/`

    `gcr update signals measured.csv --label kind --memory 1000`

    `gcr update birds --rollback`
    """
    from gcr.classifier.update import New, UpdateSettings
    from gcr.classifier.update import update as run_update
    from gcr.learner.state_folder import StateFolder

    folder = StateFolder(state)
    if rollback:
        if new is not None:
            raise BadInput("--rollback and NEW exclude each other; roll back first, then update")
        return _roll_back(folder, wait)
    if new is None:
        raise BadInput("NEW is missing: a folder with a folder per class, or a CSV, TSV or parquet file")
    settings = UpdateSettings(memory, epochs, limit, holdout, seed)
    given = New(new, label, path_column, net, size, skip_bad, mirror)
    try:
        with _locked(folder, wait), closing(Bars()) as progress:
            outcome = run_update(folder, given, settings, _device(device), _say, progress)
    except KeyboardInterrupt:
        _say(f"interrupted: {state} is as it was before")
        return 130
    return _print_outcome(state, outcome, limit)


def predict(
    state: StateArgument,
    files: FilesArgument,
    out_file: Annotated[Path | None, typer.Option("--out", help="CSV file to write; printed if not given.")] = None,
    path_column: PathOption = None,
    skip_bad: SkipOption = False,
    device: DeviceOption = "auto",
) -> None:
    """The class of every picture or row, with its probability.

    Example: `gcr predict birds photos/ --out predictions.csv`
    """
    from gcr.classifier import saved
    from gcr.classifier.predict import predict as run_predict
    from gcr.classifier.predict import write_predictions
    from gcr.learner.state_folder import StateFolder

    with closing(Bars()) as progress:
        text = run_predict(
            saved.load(StateFolder(state), _device(device)), files, path_column, skip_bad, _say, progress
        )
    if out_file is None:
        write(text)
        return
    write_predictions(text, out_file)
    out.say(f"predictions: {out_file}, {sum(1 for _ in csv.reader(StringIO(text, newline=''))) - 1} rows")


def inspect(
    state: StateArgument,
    page: Annotated[
        Path | None, typer.Option("--page", help="File to write; inspect.html in the state's folder if not given.")
    ] = None,
) -> None:
    """One HTML page: classes, counts, updates, accuracy over updates, and the memory as pictures with weights.

    Example: `gcr inspect birds`
    """
    from gcr.classifier import saved
    from gcr.classifier.page import write_page
    from gcr.learner.state_folder import StateFolder

    classifier = saved.load(StateFolder(state), "cpu")
    version = classifier.folder.versions()[0]
    written = write_page(classifier, version, page or state / saved.PAGE)
    out.say(f"page: {written}")


def forget(
    state: StateArgument,
    files: FilesArgument,
    path_column: PathOption = None,
    skip_bad: SkipOption = False,
    wait: WaitOption = False,
) -> None:
    """Erase what the classifier remembers of these pictures or rows, for whoever asks for it.

    Copies are found by their pixels or numbers, and earlier versions of the state are removed. What the network learned
    from them stays in its weights; a new classifier from other examples has nothing of it.

    Example: `gcr forget birds withdrawn-pictures/`
    """
    from gcr.classifier.forget import forget as run_forget
    from gcr.learner.state_folder import StateFolder

    folder = StateFolder(state)
    if not folder.versions():
        folder.read()  # says that there is no state
    with _locked(folder, wait), closing(Bars()) as progress:
        done = run_forget(folder, files, path_column, skip_bad, _say, progress)
    if not done.written:
        out.say(f"{state} remembers none of these {done.given} examples; it is unchanged, at version {done.version}")
        return
    if done.bare:
        err.say(f"note: no example left to replay of {', '.join(done.bare)}; update with others of it", "yellow")
    out.say(
        f"{state}: version {done.version}, erased {done.replayed} examples to replay and {done.held_out} held out, of "
        f"{done.given} given; earlier versions are removed"
    )


COMMANDS = (update, predict, inspect, forget)


def _roll_back(folder: StateFolder, wait: bool) -> int:
    if not folder.versions():
        folder.read()  # says that there is no state
    with _locked(folder, wait):
        version = folder.rollback()
    out.say(f"{folder.path} is at version {version} again")
    return 0


@contextmanager
def _locked(folder: StateFolder, wait: bool) -> Iterator[None]:
    from gcr.learner.state_folder import Busy

    try:
        with folder.lock(wait, lambda who: _say(f"waiting for {who}, which is changing {folder.path}")):
            yield
    except Busy as error:
        raise BadInput(f"{error}, or give --wait") from None


def _device(name: str) -> str:
    from gcr.runs.local import pick_device

    return str(pick_device(name))


def _print_outcome(state: Path, outcome: Outcome, limit: float) -> int:
    drawn = Table(title="held-out accuracy, %", title_justify="left")
    has_old = any(one.old for one in outcome.classes)
    for column in ("class", *(["before"] if has_old else []), "after", "held out"):
        drawn.add_column(column, justify="left" if column == "class" else "right")
    for one in outcome.classes:
        drawn.add_row(*_row(one, has_old, limit))
    if has_old and outcome.verdict.before is not None and outcome.verdict.after is not None:
        drawn.add_section()
        drawn.add_row("old, mean", f"{100 * outcome.verdict.before:.1f}", f"{100 * outcome.verdict.after:.1f}", "")
    print_whole(drawn)
    if outcome.verdict.refused:
        why = f"refused: {', '.join(outcome.verdict.refused)}; the limit is {limit:g}"
        err.say(why, "red")
        _say(f"{state} is unchanged, at version {outcome.version}. To go on, do one of these:")
        for remedy in outcome.remedies:
            _say(f"- {remedy}")
        return 1
    if outcome.verdict.doubt:
        err.say(f"note: {outcome.verdict.doubt}", "yellow")
    n = len(outcome.classes)
    out.say(f"{state}: version {outcome.version}, {n} classes")
    return 0


def _row(one: ClassAccuracy, has_old: bool, limit: float) -> list[Any]:
    def percent(share: float | None) -> str:
        return "–" if share is None else f"{100 * share:.1f}"

    fell = one.points_lost > limit
    before = [percent(one.before) if one.old else "new"] if has_old else []
    return [Text(printable(one.name)), *before, Text(percent(one.after), "red" if fell else ""), str(one.n)]


def _say(line: str) -> None:
    err.say(line)


class Bars:
    """A bar on a terminal for each thing that takes long, gone when it is done; nothing elsewhere."""

    def __init__(self) -> None:
        self.bar: Progress | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=err, disable=not err.redraws, transient=True)
            self.bar.add_task(what, total=total)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=done, total=total)
        if done >= total:
            self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
