"""gcr reproduce, gcr sweep: whole tables, and the search for values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcr.cli.console import check_format
from gcr.cli.options import (
    AddressOption,
    DeviceOption,
    EngineOption,
    FormatOption,
    GpusOption,
    NoModelOption,
    OnlineOption,
    OutOption,
    PackOption,
    PrecisionOption,
    ProcessesOption,
    ThreadsOption,
    TrackOption,
    VariantOption,
    read_buffers,
    read_pack,
    read_seeds,
    read_settings,
    read_words,
)
from gcr.settings import BadInput, unknown

FINAL_SEEDS = 15  # of the winner


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="offline-accuracy, offline-forgetting, offline-forgetting-main, more-tasks, online-accuracy, "
            "online-forgetting, ablation, ocs, er-gcr, imagenet1k, main-figure; or demo-table, a miniature on digits."
        ),
    ],
    scenario: Annotated[str | None, typer.Option("--scenario", help="Only these, as seq-cifar10,seq-cifar100.")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Only these rows, as er,gcr.")] = None,
    buffer: Annotated[str | None, typer.Option("--buffer", "-k", help="Only these buffer sizes, as 200,500.")] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="Only class-il or task-il, with its values' runs.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="As 0,1,2 or 0-4; 15 if not given, after those of trials.")
    ] = None,
    values: Annotated[
        str | None,
        typer.Option("--values", help="paper: what its search chose (the default); sweep: search on validation data."),
    ] = None,
    variant: VariantOption = None,
    epochs_scale: Annotated[
        float, typer.Option("--epochs-scale", help="A quick look with this share of the epochs, marked as such.")
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List runs that are done and missing, and how long it will take.")
    ] = False,
    measure: Annotated[
        float, typer.Option("--measure", help="Seconds that --dry-run may measure; 0: go by what is known.", min=0)
    ] = 10.0,
    show: Annotated[bool, typer.Option("--show", help="Print the table from what is there; train nothing.")] = False,
    form: FormatOption = "terminal",
    out_folder: OutOption = Path("runs/paper"),
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    pack: PackOption = "auto",
    processes: ProcessesOption = 0,
    threads: ThreadsOption = 1,
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 1.0,
    track: TrackOption = "",
    no_model: NoModelOption = False,
) -> int:
    """Reproduce a table of the paper: runs, tests, the table next to the paper's, and a page.

    Runs that are there are never repeated, so the same command continues, and several may work on one folder. All
    tables share the folder, so that none is trained twice.

    Examples:

    `gcr reproduce demo-table`

    `gcr reproduce offline-accuracy --dry-run`

    `gcr reproduce offline-accuracy --scenario seq-cifar10 --method der++,gcr --buffer 500 --protocol class-il`
    """
    from gcr.cli import dry_run as listing
    from gcr.cli import reproducing
    from gcr.paper.plan import Request, make_plan
    from gcr.runs.job import Execution

    request = Request(
        table,
        scenarios=read_words("scenario", scenario),
        methods=read_words("method", method),
        buffers=read_buffers(buffer),
        protocols=tuple(word.lower() for word in read_words("protocol", protocol)),
        seeds=tuple(read_seeds(seeds)) if seeds is not None else (),
        values=values or "",
        epochs_scale=epochs_scale,
        precision=precision,
        variant=variant,
    )
    check_format(form)
    if dry_run and show:
        raise BadInput("--dry-run and --show exclude each other; give one")
    plan = make_plan(request, out_folder)
    how = Execution(
        device=device,
        pack=read_pack(pack),
        processes=processes,
        threads=threads,
        engine=engine,
        address=address,
        gpus=gpus,
        track=track,
        model=not no_model,
    )
    if dry_run:
        listing.dry_run(plan, how, measure)
        return 0
    if show:
        reproducing.show(plan, page=False, form=form)
        return 0
    return reproducing.reproduce(plan, how, form)


def sweep(
    scenario: Annotated[str, typer.Argument(help="Which tasks; see `gcr scenarios`.")],
    method: Annotated[str, typer.Option("--method", "-m", help="See `gcr methods`; or a row as 'er + grad-approx'.")],
    buffer: Annotated[int | None, typer.Option("--buffer", "-k", help="Examples kept in memory.")] = None,
    online: OnlineOption = False,
    grid: Annotated[
        str, typer.Option("--grid", help="paper, or a TOML file with a list per setting, as lr = [0.01, 0.03].")
    ] = "paper",
    seeds: Annotated[str, typer.Option("--seeds", help="Of the trials, as 0,1,2 or 0-4.")] = "0",
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            help="Choose by class-il, task-il, or both apart; by accuracy (at the end) or anytime. Together as "
            "class-il,anytime.",
        ),
    ] = "both",
    final_seeds: Annotated[
        str | None,
        typer.Option(
            "--final-seeds",
            help="Of the winner's runs on all training images; the 15 after those of the trials if not given; none: "
            "only choose.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of all runs, as epochs=5; may be repeated.")
    ] = None,
    out_folder: OutOption = Path("runs/sweep"),
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    pack: PackOption = "auto",
    processes: ProcessesOption = 0,
    threads: ThreadsOption = 1,
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 1.0,
    track: TrackOption = "",
    no_model: NoModelOption = False,
) -> int:
    """Search a grid on 10% of the training images, then train the winner on all of them.

    Every trial is a run folder below OUT/trials; the choice and its runners-up are in OUT/sweep-*.json. A trial that
    diverges has lost; of equal means, the first in the order of the grid wins. The same command continues.

    Examples:

    `gcr sweep seq-digits --method er --buffer 50 --grid mine.toml --seeds 0,1 --final-seeds 2-6`

    `gcr sweep seq-cifar10 --method gcr --online --metric anytime`
    """
    from gcr.cli import reproducing
    from gcr.paper.grid_search import Search, paper_grid, read_grid
    from gcr.runs.job import Execution

    protocols, chosen_by = _read_metric(metric)
    regime = "online" if online else "offline"
    points = paper_grid(regime, method) if grid == "paper" else read_grid(Path(grid))
    common = read_settings(settings or []) | ({} if precision is None else {"precision": precision})
    if twice := common.keys() & points.keys():
        raise BadInput(f"{min(twice)} is in the grid and in --set; give it once")
    search = Search(scenario, regime, method, buffer, points, common, tuple(read_seeds(seeds)), chosen_by)
    if final_seeds is None:
        finals = [max(search.seeds) + n for n in range(1, FINAL_SEEDS + 1)]
    else:
        finals = [] if final_seeds == "none" else read_seeds(final_seeds)
    how = Execution(
        device=device,
        pack=read_pack(pack),
        processes=processes,
        threads=threads,
        engine=engine,
        address=address,
        gpus=gpus,
        track=track,
        model=not no_model,
    )
    return reproducing.sweep(search, protocols, finals, out_folder, how)


def _read_metric(text: str) -> tuple[tuple[str, ...], str]:
    """The protocols and the metric to choose by.

    >>> _read_metric("class-il,anytime"), _read_metric("both")
    ((('class-il',), 'anytime'), (('class-il', 'task-il'), 'accuracy'))
    """
    from gcr.paper.grid_search import CHOSEN_BY, PROTOCOLS

    words, known = read_words("metric", text), (*PROTOCOLS, "both", *CHOSEN_BY)
    for word in words:
        if word not in known:
            raise unknown("metric", word, known)
    metrics = [word for word in words if word in CHOSEN_BY]
    if len(metrics) > 1:
        raise BadInput(f"metric must be one of {', '.join(CHOSEN_BY)}, got {text}; give one")
    protocols = tuple(word for word in PROTOCOLS if word in words)
    return protocols if protocols and "both" not in words else PROTOCOLS, metrics[0] if metrics else CHOSEN_BY[0]
