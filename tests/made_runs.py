"""Run folders made of numbers, for what only reads them."""

import json
from collections import Counter

import torch

from gcr.experiments.experiment import Experiment, compose
from gcr.files import digest_of, json_bytes, parse_json, tensor_bytes
from gcr.runs.folder import RunFolder
from gcr.training import Epoch


def experiment_of(method, seed=0, buffer=20, scenario="seq-digits", selector=None, **overrides):
    keeps_memory = method not in ("finetune", "joint")
    given = overrides | ({"buffer": buffer} if keeps_memory else {})
    return compose(scenario, method, seed=seed, selector=selector, overrides=given)


def put_run(out, experiment, matrix, name=None, seconds=2.0, forgetting=10.0, memory=False, **more):
    """A finished run whose two protocols are alike."""
    folder = RunFolder.of(out, experiment, name)
    folder.path.mkdir(parents=True)
    accuracy = sum(matrix[-1]) / len(matrix[-1])
    protocol = {"matrix": matrix, "accuracy": accuracy, "forgetting": None if len(matrix) == 1 else forgetting}
    made = {"seconds": seconds, "steps": 9, "device": "cpu", "versions": {"gcr": "1"}, "selections": []}
    (folder.path / "experiment.json").write_bytes(json_bytes(experiment.to_dict()))
    if memory:
        put_memory(folder.path)
    (folder.path / "result.json").write_bytes(json_bytes({"class_il": protocol, "task_il": protocol} | made | more))
    link_files(folder)
    return folder


def link_files(folder, **changed):
    """Let the result name what lies next to it, as that of a run that was trained."""
    file = folder.path / "result.json"
    links = {"experiment": digest_of(folder.experiment_values()), "files": folder.named_files()}
    file.write_bytes(json_bytes(links | parse_json(file.read_bytes(), file) | links | changed))


def put_memory(path, size=20, classes=10, side=8):
    generator = torch.Generator().manual_seed(0)
    columns = {
        "image": torch.randint(256, (size, 1, side, side), dtype=torch.uint8, generator=generator),
        "label": torch.arange(size) % classes,
        "weight": torch.linspace(0.5, 3, size),
    }
    (path / "memory.safetensors").write_bytes(tensor_bytes(columns))


def put_unfinished(out, experiment, name=None, epochs=1):
    folder = RunFolder.of(out, experiment, name)
    folder.begin(experiment)
    for n in range(epochs):
        add_epoch(folder, n)
    return folder


def add_epoch(folder, n):
    folder.add_epoch(Epoch(stage=1, epoch=n, steps=30 + n, total_steps=120, loss=0.5, accuracy=61.5, seconds=0.1))


def square(value, tasks=5):
    return [[value] * tasks for _ in range(tasks)]


def finish(job, class_il=50.0, task_il=50.0, forgetting=20.0, versions=None, n_tasks=5, precision="fp32"):
    """A finished run of a job."""
    protocols = {
        protocol: {"matrix": [[value] * n_tasks] * n_tasks, "accuracy": value, "forgetting": forgetting}
        for protocol, value in (("class_il", class_il), ("task_il", task_il))
    }
    made = {"seconds": 2.0, "steps": 100, "device": "cpu", "versions": versions or {}, "selections": []}
    made["precision"] = precision
    job.folder.path.mkdir(parents=True, exist_ok=True)
    (job.folder.path / "experiment.json").write_bytes(json_bytes(job.experiment.to_dict()))
    (job.folder.path / "result.json").write_bytes(json_bytes(protocols | made))


def count_reading(monkeypatch):
    """Counts, from now on, of JSON texts parsed ("texts") and experiments checked ("experiments")."""
    counts, loads, from_dict = Counter(), json.loads, Experiment.from_dict

    def count_text(*arguments, **options):
        counts["texts"] += 1
        return loads(*arguments, **options)

    def count_experiment(values):
        counts["experiments"] += 1
        return from_dict(values)

    monkeypatch.setattr(json, "loads", count_text)
    monkeypatch.setattr(Experiment, "from_dict", count_experiment)
    return counts


SELECTION = {
    "stage": 0,
    "from": 40,
    "kept": 20,
    "note": "",
    "gradient_error": 4.5,
    "relative_to_uniform": 0.4,
    "effective_size": 17.0,
    "smallest_weight": 0.5,
    "largest_weight": 3.0,
    "total_weight": 35.0,
    "per_class": {str(label): 2 for label in range(10)},
}
