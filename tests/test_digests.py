"""Seeded results on a CPU stay what they were: a refactor must not change a bit of the demo or of an online run.

``tests/digests.json`` was written by the code before the rooms were opened. A change that is meant to change numbers
writes the file anew and says so.
"""

import hashlib
import json
from pathlib import Path

import pytest

from gcr.experiments.experiment import compose
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, run_job

RECORDED = json.loads((Path(__file__).parent / "digests.json").read_text())
METHODS = ("finetune", "er", "der++", "gcr", "joint")
CASES = [("demo", method, {"epochs": 8}) for method in METHODS] + [("online", "gcr", {"setting": "online"})]


@pytest.mark.parametrize(("study", "method", "overrides"), CASES)
def test_seed_0_has_its_recorded_digest(study, method, overrides, tmp_path):
    experiment = compose("seq-digits", method, seed=0, overrides=overrides)
    folder = RunFolder.of(tmp_path, experiment)
    errors = []
    run_job(0, Job(experiment, folder), Execution(device="cpu"), lambda event: errors.append(event.error))
    assert not any(errors), errors
    result = folder.result()
    recorded = {key: result[key] for key in ("class_il", "task_il", "selections")}
    digest = hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()[:16]
    assert digest == RECORDED[f"{study}/{experiment.run_name}"]
