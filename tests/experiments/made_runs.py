"""Finished runs as files, without training."""

import json


def finish(job, class_il=50.0, task_il=50.0, forgetting=20.0, versions=None, n_tasks=5):
    views = {
        view: {"matrix": [[value] * n_tasks] * n_tasks, "accuracy": value, "forgetting": forgetting}
        for view, value in (("class_il", class_il), ("task_il", task_il))
    }
    made = {"seconds": 2.0, "steps": 100, "device": "cpu", "versions": versions or {}, "selections": []}
    job.folder.path.mkdir(parents=True, exist_ok=True)
    (job.folder.path / "experiment.json").write_text(job.experiment.to_json())
    (job.folder.path / "result.json").write_text(json.dumps(views | made, indent=2))
