"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunsArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder of finished runs, a packed file (FILE.jsonl.gz) or one experiment in it (FILE.jsonl.gz/NAME).",
        metavar="PATH",
    ),
]
OnlineOption = Annotated[bool, typer.Option("--online", help="One pass over streams instead of tasks in turn.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder for run folders.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
PackOption = Annotated[str, typer.Option("--pack", help="Runs at a time on a GPU; auto: as many as pay.")]
ProcessesOption = Annotated[int, typer.Option("--processes", help="Runs at a time on a CPU; 0: one per core.", min=0)]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Threads of a run on a CPU.", min=1)]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="fp32, tf32 or bf16; bf16 on a GPU if not given.")
]
EngineOption = Annotated[
    str, typer.Option("--engine", help="Where runs train: local (this machine) or ray (a cluster).")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="HOST:PORT of a Ray cluster; with --engine ray and no address, Ray on this machine."
    ),
]
GpusOption = Annotated[
    float, typer.Option("--gpus", help="GPUs that Ray gives to a run, as 4, or a share for each pack, as 0.5.")
]
TrackOption = Annotated[
    str, typer.Option("--track", help="Report to tensorboard, mlflow or wandb; several as tensorboard,mlflow.")
]
VariantOption = Annotated[
    str | None,
    typer.Option("--variant", help="Of GCR: paper (its text) or released (its code); if not given, our default."),
]
NoModelOption = Annotated[
    bool, typer.Option("--no-model", help="Keep no network (model.safetensors) of finished runs.")
]
FormatOption = Annotated[str, typer.Option("--format", help="terminal, markdown, csv or latex.")]
MetricsOption = Annotated[
    str,
    typer.Option(
        "--metrics",
        help="Any of accuracy, forgetting, forgetting_with_last, anytime, learning, backward_transfer, "
        "forward_transfer.",
    ),
]
