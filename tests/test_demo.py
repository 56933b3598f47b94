"""``gcr demo`` as a user calls it: its table, its report, and every bit of its results.

A change that is meant to change numbers writes ``tests/digests.json`` again and says so; the last one made our own
networks channels last on a CPU.
"""

import fcntl
import hashlib
import json
import platform
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from conftest import HANG_SECONDS

from gcr.cli.main import run_cli
from gcr.experiments.experiment import compose
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, run_job

RECORDED = json.loads((Path(__file__).parent / "digests.json").read_text()).get(platform.machine())
METHODS = ("finetune", "er", "der++", "gcr", "gcr+", "joint")


def call_demo(out):
    command = [sys.executable, "-m", "gcr", "demo", "--device", "cpu", "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)


def here(*arguments):
    """Exit code, standard output and errors of a command in this process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run_cli([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory, request):
    """Its folder and what it printed; one demo serves all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    out, printed = folder / "the-demo", folder / "the-demo.txt"
    with open(folder / "the-demo.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            done = call_demo(out)
            assert done.returncode == 0, done.stderr
            printed.write_text(done.stdout)
    return out, printed.read_text()


def accuracies(folder, method):
    results = sorted(folder.glob(f"seq-digits-{method}/seed-*/result.json"))
    assert len(results) == 3
    return [json.loads(file.read_text())["class_il"]["accuracy"] for file in results]


def mean(values):
    return sum(values) / len(values)


def check_digest(study, folder):
    if RECORDED is None:
        pytest.skip(f"no digests of {platform.machine()}: it rounds in its own way")
    result = folder.result()
    recorded = {key: result[key] for key in ("class_il", "task_il", "selections")}
    digest = hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()[:16]
    assert digest == RECORDED[f"{study}/{folder.path.parent.name}"]


@pytest.mark.parametrize("method", METHODS)
def test_seed_0_of_the_demo_has_its_recorded_digest(demo, method):
    experiment = compose("seq-digits", method, seed=0, overrides={"epochs": 8})
    check_digest("demo", RunFolder.of(demo[0], experiment))


def test_an_online_run_has_its_recorded_digest(tmp_path):
    experiment = compose("seq-digits", "gcr", seed=0, overrides={"online": True})
    folder = RunFolder.of(tmp_path, experiment)
    errors = []
    run_job(0, Job(experiment, folder), Execution(device="cpu"), lambda event: errors.append(event.error))
    assert not any(errors), errors
    check_digest("online", folder)


def test_demo_prints_table_and_report(demo):
    folder, printed = demo
    for method in METHODS:
        assert re.search(rf"│ {re.escape(method)} +│", printed)
    assert str(folder / "report.html") in printed
    assert (folder / "report.html").exists()


def test_demo_is_small(demo):
    """18 runs of 370 steps take one to two minutes on two cores."""
    results = [json.loads(file.read_text()) for file in demo[0].rglob("result.json")]
    assert len(results) == 18
    assert sum(result["steps"] for result in results) <= 9000


def test_demo_shows_what_replay_is_for(demo):
    """GCR+, GCR and DER++ at least 30 points above finetune, and not above joint beyond noise."""
    folder = demo[0]
    finetune, joint = accuracies(folder, "finetune"), accuracies(folder, "joint")
    for method in ("derpp-k100", "gcr-k100", "gcr-plus-k100"):
        ours = accuracies(folder, method)
        assert mean(ours) >= mean(finetune) + 30
        assert mean(ours) <= mean(joint) + 2


def test_demo_again_keeps_what_is_there(demo):
    before = (demo[0] / "seq-digits-gcr-k100/seed-0/result.json").read_bytes()
    done = call_demo(demo[0])
    assert done.returncode == 0
    assert "18 of 18 runs were there already" in done.stderr
    assert (demo[0] / "seq-digits-gcr-k100/seed-0/result.json").read_bytes() == before


def test_table_of_the_demo(demo):
    code, out, _ = here("table", demo[0])
    assert code == 0
    assert f"{mean(accuracies(demo[0], 'gcr-k100')):.2f} ±" in out


def test_report_of_the_demo(demo, tmp_path):
    code, _, _ = here("report", demo[0], "--page", tmp_path / "page.html")
    assert code == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_page_that_cannot_be_written(demo, tmp_path):
    code, _, err = here("report", demo[0], "--page", tmp_path)
    assert code == 2
    assert "cannot write" in err
