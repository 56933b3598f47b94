"""TensorBoard event files, in the folder ``tensorboard`` of each run: ``tensorboard --logdir runs``."""

from __future__ import annotations

from typing import Any, ClassVar

from gcr.runs.job import Job
from gcr.runs.tracking.record import Numbers

FLUSH_SECONDS = 10


class EventFiles:
    name: ClassVar[str] = "tensorboard"
    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, fresh: bool) -> None:
        pass  # a file is always written from the beginning, for a run that is continued from its metrics

    def open(self, job: Job) -> EventFile:
        from torch.utils.tensorboard import SummaryWriter

        folder = job.folder.path / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        return EventFile(SummaryWriter(str(folder), flush_secs=FLUSH_SECONDS))


class EventFile:
    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def add(self, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def end(self, how: str) -> None:
        self.writer.close()
