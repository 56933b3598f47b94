"""The command line: parses, calls, prints; nothing else. What a command needs is imported when it starts."""

from __future__ import annotations

import itertools
import os
import re
import sys
import warnings
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any

import typer

import gcr
from gcr import files
from gcr.cli import launch
from gcr.cli.console import check_format, err, out, print_table, warn_of_diverged, warn_of_unreadable
from gcr.cli.data import data_app
from gcr.cli.listing import LISTS
from gcr.cli.options import (
    AddressOption,
    DeviceOption,
    EngineOption,
    FormatOption,
    GpusOption,
    MetricsOption,
    NoModelOption,
    OnlineOption,
    OutOption,
    PackOption,
    PrecisionOption,
    ProcessesOption,
    RunsArgument,
    SeveralRunsArgument,
    ThreadsOption,
    TrackOption,
    VariantOption,
    read_buffers,
    read_pack,
    read_seeds,
    read_settings,
    read_variants,
    read_words,
)
from gcr.cli.reproduce import reproduce, sweep
from gcr.cli.results import results_app, verify
from gcr.cli.update import COMMANDS
from gcr.runs.place import Place
from gcr.settings import BadInput, unknown

SEEDS = range(3)  # of the demo

app = typer.Typer(
    name="gcr",
    help="Continual learning with replay memory chosen by gradient coresets.\n\n"
    "Example: `gcr demo`, then `gcr run seq-digits --method gcr --seeds 0-4` and `gcr table runs`",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@cache
def parser() -> Any:
    """Of all commands. Reading their signatures takes 0.1 s, so a program that runs many builds it once."""
    return typer.main.get_command(app)


def run_cli(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 a run failed, 2 bad usage, 130 or 143 stopped by a signal."""
    launch.words[:] = sys.argv[1:] if arguments is None else arguments
    files.unchecked.clear()
    files.linked_to_none.clear()
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what it warns of is named by gcr where it matters
    try:
        returned: object = parser()(arguments, standalone_mode=False)
        return returned if isinstance(returned, int) else 0
    except BadInput as error:
        message, code = str(error), 2
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the parser's own
            raise
        message, code = error.format_message(), error.exit_code  # type: ignore[attr-defined]
    if message:
        err.say(f"error: {message}", "red")
    return code


def _version(wanted: bool) -> None:
    if wanted:
        out.say(f"gcr {gcr.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", help="File with methods, selectors or networks of your own; or GCR_PLUGIN=FILE."),
    ] = None,
) -> None:
    if plugin:
        os.environ["GCR_PLUGIN"] = os.pathsep.join(map(str, plugin))
    if os.environ.get("GCR_PLUGIN"):
        from gcr.experiments import plugins

        plugins.check()
    if Place.of_environment() and context.invoked_subcommand != "run":
        raise BadInput(f"torchrun is for gcr run, got gcr {context.invoked_subcommand}; leave out torchrun")


@app.command()
def demo(
    out_folder: OutOption = Path("runs/demo"),
    device: DeviceOption = "auto",
    processes: ProcessesOption = 0,
    engine: EngineOption = "local",
    address: AddressOption = None,
) -> int:
    """Six methods on real digits, three seeds each: a table and a report in a few minutes.

    Example: `gcr demo`
    """
    from gcr.experiments.experiment import compose
    from gcr.runs.folder import RunFolder
    from gcr.runs.job import Execution, Job

    methods = ("finetune", "er", "der++", "gcr", "gcr+", "joint")
    experiments = [
        compose("seq-digits", method, seed=seed, overrides={"epochs": 8}) for method in methods for seed in SEEDS
    ]
    jobs = [Job(experiment, RunFolder.of(out_folder, experiment)) for experiment in experiments]
    how = Execution(device=device, processes=processes, engine=engine, address=address)
    return launch.train_and_show(jobs, out_folder, how, title="Digits, six methods")


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="Which tasks; see `gcr scenarios`.")],
    method: Annotated[
        str, typer.Option("--method", "-m", help="See `gcr methods`; several as er,gcr; or all.")
    ] = "gcr",
    selector: Annotated[
        str | None, typer.Option("--selector", help="See `gcr selectors`; the method's own if not given.")
    ] = None,
    variant: VariantOption = None,
    online: OnlineOption = False,
    stream: Annotated[int | None, typer.Option("--stream", help="Examples of each stream, online.")] = None,
    buffer: Annotated[int | None, typer.Option("--buffer", "-k", help="Examples kept in memory.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over each task.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="convnet, mlp or resnet18.")] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="As 0,1,2 or 0-4.")] = "0",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as lr=0.03 or memory.admit=all; may be repeated.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", help="Compare values of a setting, as gamma=0,0.5,1; of several: all combinations."),
    ] = None,
    out_folder: OutOption = Path("runs"),
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run folder; made from the experiment if not given.")
    ] = None,
    device: DeviceOption = "auto",
    mode: Annotated[
        str, typer.Option("--mode", help="How steps run: auto, eager, compiled or captured (as a CUDA graph).")
    ] = "auto",
    precision: PrecisionOption = None,
    pack: PackOption = "auto",
    processes: ProcessesOption = 0,
    threads: ThreadsOption = 1,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits every time on a GPU too; slower.")
    ] = False,
    checkpoint_steps: Annotated[
        int,
        typer.Option(
            "--checkpoint-steps",
            help="A checkpoint every so many steps and at the end of each epoch; 0: only the latter.",
            min=0,
        ),
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Continue unfinished runs, or begin them again.")
    ] = True,
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 1.0,
    track: TrackOption = "",
    no_model: NoModelOption = False,
) -> int:
    """Train a method on a scenario, once per seed. Finished runs are kept, unfinished ones continued.

    Examples:

    `gcr run seq-digits --method gcr --buffer 100 --seeds 0,1,2`

    `gcr run seq-digits --method er --selector grad-approx --set lr=0.03 --out runs/er-gcr`

    `gcr run seq-digits --method all --online --seeds 0-4`

    `gcr run seq-digits --vary selector=grad-approx,class-balanced --vary gamma=0,0.1 --seeds 0-4`

    `gcr run seq-digits --vary variant=paper,released --seeds 0-4`

    `gcr run seq-cifar10 --method gcr --seeds 0-14 --pack 8`

    `torchrun --nproc-per-node 4 -m gcr run seq-imagenet1k --method gcr --set batch=128`

    `gcr run seq-cifar10 --method gcr,er --seeds 0-14 --engine ray --address 10.0.0.1:6379 --track mlflow`
    """
    from gcr.experiments import plugins
    from gcr.experiments.experiment import compose, settings_of
    from gcr.paper.grid_search import variant_name
    from gcr.runs.folder import RunFolder
    from gcr.runs.job import Execution, Job

    overrides = read_settings(settings or [])
    named = {
        "memory.buffer": buffer,
        "training.epochs": epochs,
        "training.precision": precision,
        "stream.online": online or None,
        "stream.stream": stream,
        "model": model,
        "variant": variant,
    }
    for key, value in named.items():
        if value is not None:
            option = key.split(".")[-1]
            if twice := overrides.keys() & {key, option}:
                raise BadInput(f"{option} is given twice, as --{option} and as --set {min(twice)}=…; give it once")
            overrides[key] = value
    methods = [known.name for known in plugins.methods()] if method == "all" else method.split(",")
    many = len(methods) > 1
    if many and (selector or name or vary):
        option = "selector" if selector else "name" if name else "vary"
        raise BadInput(f"--{option} is for one method at a time, got --method {method}")
    if name is not None and not re.fullmatch(r"[\w+-][\w.+-]*", name):
        raise BadInput(f'name must be letters, digits and any of ._+-, got "{name}"')
    variants = read_variants(vary or [])
    if twice := variants[0].keys() & (overrides.keys() | ({"selector"} if selector else set())):
        raise BadInput(f"{min(twice)} is given twice, once by --vary; give it once")
    jobs = []
    for each, changed, seed in itertools.product(methods, variants, read_seeds(seeds)):
        values = settings_of(each, overrides, several=many) | {k: v for k, v in changed.items() if k != "selector"}
        chosen = changed.get("selector", selector)
        experiment = compose(scenario, each, seed=seed, selector=chosen, overrides=values)
        if "variant" in values and name is None:  # the default's folder holds another experiment
            changed = {"variant": values["variant"]} | changed
        jobs.append(Job(experiment, RunFolder.of(out_folder, experiment, variant_name(experiment, changed, name))))
    if len({job.experiment for job in jobs}) < len(jobs):
        raise BadInput(f"{'--vary has a value' if vary else '--method has a method'} twice; give each once")
    how = Execution(
        device,
        mode,
        read_pack(pack),
        processes,
        threads,
        deterministic,
        checkpoint_steps,
        not resume,
        engine,
        address,
        gpus,
        track,
        model=not no_model,
    )
    shown = {key: key.split(".")[-1] if key in named else key for key in overrides}  # as they were typed
    given = {shown[key]: value for key, value in overrides.items() if shown[key] not in ("buffer", "online")}
    return launch.train_and_show(jobs, out_folder, how, given=given, varied=list(variants[0]))


@app.command()
def table(
    paths: SeveralRunsArgument,
    scenario: Annotated[str | None, typer.Option("--scenario", help="Only these, as seq-cifar10,seq-cifar100.")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Only these, as er,gcr.")] = None,
    buffer: Annotated[str | None, typer.Option("--buffer", "-k", help="Only these buffer sizes, as 200,500.")] = None,
    metrics: MetricsOption = None,
    form: FormatOption = "terminal",
    paper: Annotated[
        str | None, typer.Option("--paper", help="A table of the paper to compare the runs with, as offline-accuracy.")
    ] = None,
    per_seed: Annotated[
        bool, typer.Option("--per-seed", help="With --format csv or json: one for each run and metric, with settings.")
    ] = False,
) -> None:
    """Mean ± SEM over seeds for all finished runs below folders; or next to a table of the paper.

    A run that is below two of PATHS counts once. Without --metrics: accuracy and forgetting.

    Examples:

    `gcr table runs --method er,gcr --metrics anytime,backward_transfer`

    `gcr table results/online*.jsonl.gz runs/mine`

    `gcr table runs --paper offline-accuracy --buffer 500 --format markdown`

    `gcr table runs --paper online-forgetting --metrics forgetting_with_last`

    `gcr table runs --format csv --per-seed > runs.csv`

    `gcr table runs --format json > runs.json`
    """
    from gcr.analysis import tables
    from gcr.analysis.formats import OF_RECORDS
    from gcr.analysis.load import read_runs
    from gcr.paper import compare_to_paper
    from gcr.paper.plan import Request, asked_table

    names = tables.SHOWN if metrics is None else _metrics(metrics, tables.MEMORY)
    check_format(form)
    numbers = form in OF_RECORDS
    if per_seed and (not numbers or paper is not None):
        raise BadInput("--per-seed needs --format csv or json, and excludes --paper")
    only = read_words("scenario", scenario), read_words("method", method), read_buffers(buffer)
    asked = asked_table(Request(paper, *only)) if paper is not None else None
    if asked is not None:
        compare_to_paper.check_of_paper(asked)
        forgetting = compare_to_paper.formula_of(asked, metrics)
    runs = read_runs(*paths)
    warn_of_unreadable(runs)
    if asked is None:
        runs = runs.only(*only)
        if numbers:
            warn_of_diverged(runs)
        sheets = [] if numbers else tables.sheets(runs.groups, names)
        records, notes = [], [*tables.in_all_rows(runs.groups), *runs.notes]
        if numbers and per_seed:
            records = tables.seed_records(runs.groups, names)
        elif numbers:
            records = tables.records(runs.groups, names, seeds=form == "json")
    else:
        found = compare_to_paper.compare(runs.groups, asked, forgetting=forgetting)
        shown = replace(runs, groups=[g for g in runs.groups if any(row.group is g for row in found.rows)])
        sheets, records, notes = (
            compare_to_paper.sheets(found),
            compare_to_paper.records(found),
            [*shown.notes, *compare_to_paper.verdict_notes(found), *found.notes],
        )
    print_table(form, sheets, records, notes)


def _metrics(text: str, *more: str) -> list[str]:
    from gcr.analysis.load import METRICS

    names, known = list(dict.fromkeys(text.split(","))), [*METRICS, *more]
    for name in names:
        if name not in known:
            raise unknown("metric", name, known)
    return names


@app.command()
def compare(
    first: Annotated[
        Path, typer.Argument(help="Folder of one experiment, with its seeds; of a packed one FILE.jsonl.gz/NAME.")
    ],
    others: Annotated[list[Path], typer.Argument(help="One or more others.", metavar="OTHERS...")],
    metrics: MetricsOption = None,
    form: FormatOption = "terminal",
    paired: Annotated[
        bool | None,
        typer.Option(
            "--paired/--unpaired",
            help="t-test over common seeds, or Welch's over all. Online on a GPU unpaired, else paired.",
        ),
    ] = None,
) -> None:
    """An experiment and others: means, the difference to each, and a test.

    Paired on the seeds that both have. Without a common seed, and online on a GPU, Welch's t-test over all seeds.
    Holm's correction is over all lines: name the metrics that you announced. Without --metrics: accuracy, forgetting,
    any-time and learning accuracy.

    Examples:

    `gcr compare runs/seq-digits-gcr-k100 runs/seq-digits-er-k100`

    `gcr compare runs/mine runs/er runs/der++ --metrics anytime`

    `gcr compare results/demo.jsonl.gz/seq-digits-gcr-k100 results/demo.jsonl.gz/seq-digits-er-k100`
    """
    from gcr.analysis import compare as comparison
    from gcr.analysis.load import Runs, read_runs

    names = None if metrics is None else _metrics(metrics)
    check_format(form)
    read = [read_runs(path) for path in (first, *others)]
    ours, *theirs = (comparison.one_group(*given) for given in zip((first, *others), read, strict=True))
    for runs in read:
        warn_of_unreadable(runs)
    found = comparison.pairs(ours, theirs, names, paired)
    notes = [*comparison.notes(found), *reduce(Runs.together, read).notes]
    print_table(form, [comparison.sheet(found)], comparison.records(found), notes)


@app.command()
def report(
    path: RunsArgument,
    page: Annotated[
        Path | None, typer.Option("--page", help="File to write; report.html in the folder, or next to a packed file.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--serve", help="Show it live in a browser on this machine, until Ctrl-C, as runs go on.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Where --serve listens, 8642 if not given; 0: any free port.", min=0, max=65535),
    ] = None,
) -> None:
    """One self-contained HTML page for all finished runs below a folder; or the same live, with unfinished runs too.

    Examples:

    `gcr report runs`

    `gcr report runs --serve`
    """
    from gcr.analysis.load import read_runs
    from gcr.report import serve, write_report
    from gcr.runs.packed import split_path

    if live and page is not None:
        raise BadInput("--page and --serve exclude each other; a live page is not written to a file")
    if port is not None and not live:
        raise BadInput("--port is for --serve; give both, or neither to write a file")
    if live:
        serve(
            path,
            8642 if port is None else port,
            lambda url: out.say(f"report: {url} (Ctrl-C ends it)"),
        )
        return
    runs = read_runs(path)
    warn_of_unreadable(runs)
    warn_of_diverged(runs)
    packed = split_path(path)
    home = packed[0].parent if packed else path
    file = page or home / "report.html"
    written = write_report(runs.groups, file, unreadable=runs.unreadable, notes=runs.caveats)
    out.say(f"report: {written}")


for command in (reproduce, sweep, verify, *COMMANDS):
    app.command()(command)
for listed in LISTS:
    app.command(listed)(LISTS[listed])
app.add_typer(data_app)
app.add_typer(results_app)

if __name__ == "__main__":
    sys.exit(run_cli())
