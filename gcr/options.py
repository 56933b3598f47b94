"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutOption = Annotated[Path, typer.Option("--out", help="Folder for run folders.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
PackOption = Annotated[str, typer.Option("--pack", help="Runs at a time on a GPU; auto: as many as pay.")]
ProcessesOption = Annotated[int, typer.Option("--processes", help="Runs at a time on a CPU; 0: one per core.", min=0)]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Threads of a run on a CPU.", min=1)]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="fp32, tf32 or bf16; tf32 on a GPU if not given.")
]
