"""Options that several commands share, and how those are read that are more than a word or a number."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from gcr.settings import BadInput

RunsArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder of finished runs, a packed file (FILE.jsonl.gz) or one experiment in it (FILE.jsonl.gz/NAME).",
        metavar="PATH",
    ),
]
SeveralRunsArgument = Annotated[
    list[Path],
    typer.Argument(help="Folders of finished runs, packed files or experiments in these.", metavar="PATHS..."),
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
FormatOption = Annotated[str, typer.Option("--format", help="terminal, markdown, csv, json or latex.")]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        help="Any of accuracy, forgetting, forgetting_with_last, anytime, learning, backward_transfer, "
        "forward_transfer; in `gcr table` with CSV or JSON also memory_bytes, with --paper a formula of forgetting.",
    ),
]


def read_words(name: str, text: str | None) -> tuple[str, ...]:
    """
    >>> read_words("method", "er, gcr"), read_words("method", None)
    (('er', 'gcr'), ())
    """
    if text is None:
        return ()
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise BadInput(f"--{name} is empty; name what you want, or leave it out for all")
    return words


def read_buffers(text: str | None) -> tuple[int, ...]:
    words = read_words("buffer", text)
    for word in words:
        if not word.isdigit():
            raise BadInput(f'buffer must be whole numbers as 200,500, got "{word}"')
    return tuple(int(word) for word in words)


def read_settings(items: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise BadInput(f'--set must be given as name=value, got "{item}"')
        if key in values:
            raise BadInput(f"{key} is set twice; give it once")
        values[key] = value
    return values


def read_variants(items: list[str]) -> list[dict[str, Any]]:
    """Every combination of the values that are given; one empty one for nothing.

    >>> read_variants(["gamma=0,1", "contrast=logits"])
    [{'gamma': '0', 'contrast': 'logits'}, {'gamma': '1', 'contrast': 'logits'}]
    """
    choices: dict[str, list[str]] = {}
    for item in items:
        key, equals, text = item.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not equals or not key or not all(values):
            raise BadInput(f'--vary must be given as name=value,value, got "{item}"')
        if key == "method":
            raise BadInput("methods are compared as --method er,gcr, without --vary")
        if key in choices:
            raise BadInput(f"{key} is varied twice; give all its values at once")
        choices[key] = values
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def read_pack(text: str) -> int:
    """0 stands for auto."""
    if text == "auto":
        return 0
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise BadInput(f'pack must be auto or a whole number from 1 on, got "{text}"')
    return int(text)


def read_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise BadInput(f'seeds must be whole numbers as 0,1,2 or a range as 0-4, got "{text}"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInput(f'seeds must be in rising order in a range, got "{part.strip()}"')
        if last - first >= 10_000:
            raise BadInput(f'seeds must be at most 10,000 at a time, got "{part.strip()}"')
        seeds.extend(range(first, last + 1))
    if len(set(seeds)) < len(seeds):
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        raise BadInput(f"seeds must be different, got {', '.join(map(str, twice))} more than once")
    return seeds
