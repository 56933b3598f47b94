"""``gcr demo``: its table, its report, and every bit of its results. The quick tests train four methods with seed 0.

A change that is meant to change numbers writes ``tests/digests.json`` again and says so; the last one made our own
networks channels last on a CPU. Every kind of CPU rounds in its own way: of those that are named by machine, vendor and
instructions the digests must be equal; under the machine alone are those of a kind that was not noted.
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
import torch
from conftest import HANG_SECONDS

from gcr.cli import launch, main
from gcr.cli.main import run_cli
from gcr.experiments.experiment import compose
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, run_job

RECORDED = json.loads((Path(__file__).parent / "digests.json").read_text())
CPUINFO = Path("/proc/cpuinfo")
METHODS = ("finetune", "er", "der++", "gcr", "gcr+", "joint")
QUICK = ("finetune", "gcr", "gcr+", "joint")  # the bits of all six: in the slow test of the whole demo


def call_demo(out):
    command = [sys.executable, "-m", "gcr", "demo", "--device", "cpu", "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)


def here(*arguments):
    """Exit code, standard output and errors of a command in this process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run_cli([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def quick_demo(out):
    """In this process: a new one takes seconds to import torch, as do the workers that train several runs."""
    show = launch.train_and_show

    def of_some(jobs, *arguments, **options):
        return show([job for job in jobs if job.experiment.method.name in QUICK], *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "SEEDS", range(1))
        patch.setattr(launch, "train_and_show", of_some)
        return here("demo", "--device", "cpu", "--processes", "1", "--out", out)


@pytest.fixture(scope="module")
def demo(tmp_path_factory, request):
    """The folder of the quick demo, and what it printed; one serves all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    out, printed = folder / "the-demo", folder / "the-demo.txt"
    with open(folder / "the-demo.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            code, said, errors = quick_demo(out)
            assert code == 0, errors
            printed.write_text(said)
    return out, printed.read_text()


def accuracies(folder, method, n=1):
    results = sorted(folder.glob(f"seq-digits-{method}/seed-*/result.json"))
    assert len(results) == n
    return [json.loads(file.read_text())["class_il"]["accuracy"] for file in results]


def mean(values):
    return sum(values) / len(values)


def kind_of_cpu():
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", CPUINFO.read_text() if CPUINFO.exists() else "", re.M)
    return " ".join([platform.machine(), vendor[1] if vendor else "", torch.backends.cpu.get_cpu_capability()])


def check_digest(study, folder):
    kind, name = kind_of_cpu(), f"{study}/{folder.path.parent.name}"
    result = folder.result()
    recorded = {key: result[key] for key in ("class_il", "task_il", "selections")}
    digest = hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()[:16]
    if kind in RECORDED:
        assert digest == RECORDED[kind][name]
    elif digest != RECORDED.get(platform.machine(), {}).get(name):
        pytest.skip(f"no digests of {kind}: it rounds in its own way; {name} has {digest}")


@pytest.mark.parametrize("method", QUICK)
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
    for method in QUICK:
        assert re.search(rf"│ {re.escape(method)} +│", printed)
    assert str(folder / "report.html") in printed
    assert (folder / "report.html").exists()


def test_the_demo_is_six_methods_with_three_seeds(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(launch, "train_and_show", lambda jobs, *_, **__: asked.extend(jobs) or 0)
    assert here("demo", "--out", tmp_path)[0] == 0
    assert [job.experiment for job in asked] == [
        compose("seq-digits", method, seed=seed, overrides={"epochs": 8}) for method in METHODS for seed in (0, 1, 2)
    ]


def test_demo_is_small(demo):
    """18 runs of 370 steps take one to two minutes on two cores. Here are four."""
    results = [json.loads(file.read_text()) for file in demo[0].rglob("result.json")]
    assert len(results) == len(QUICK)
    assert all(result["steps"] <= 500 for result in results)


def check_what_replay_is_for(folder, n, methods):
    """At least 30 points above finetune, and not above joint beyond noise."""
    finetune, joint = accuracies(folder, "finetune", n), accuracies(folder, "joint", n)
    for method in methods:
        ours = accuracies(folder, method, n)
        assert mean(ours) >= mean(finetune) + 30
        assert mean(ours) <= mean(joint) + 2


def test_demo_shows_what_replay_is_for(demo):
    check_what_replay_is_for(demo[0], 1, ["gcr-k100", "gcr-plus-k100"])


def test_demo_again_keeps_what_is_there(demo):
    before = (demo[0] / "seq-digits-gcr-k100/seed-0/result.json").read_bytes()
    code, _, errors = quick_demo(demo[0])
    assert code == 0
    assert "4 of 4 runs were there already" in errors
    assert (demo[0] / "seq-digits-gcr-k100/seed-0/result.json").read_bytes() == before


@pytest.mark.slow  # a minute or two: all seeds, in processes, as a user calls it
def test_the_whole_demo(tmp_path):
    done = call_demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"report: {tmp_path / 'report.html'}" in done.stdout
    assert f"{mean(accuracies(tmp_path, 'gcr-k100', 3)):.2f} ±" in done.stdout
    check_what_replay_is_for(tmp_path, 3, ["derpp-k100", "gcr-k100", "gcr-plus-k100"])
    for method in METHODS:
        assert re.search(rf"│ {re.escape(method)} +│", done.stdout)
        check_digest("demo", RunFolder.of(tmp_path, compose("seq-digits", method, seed=0, overrides={"epochs": 8})))
    again = call_demo(tmp_path)
    assert again.returncode == 0
    assert "18 of 18 runs were there already" in again.stderr


def test_table_of_the_demo(demo):
    code, out, _ = here("table", demo[0])
    assert code == 0
    (accuracy,) = accuracies(demo[0], "gcr-k100")
    assert re.search(rf"│ gcr +│ +100 │ +1 │ +{accuracy:.2f} │", out)


def test_report_of_the_demo(demo, tmp_path):
    code, _, _ = here("report", demo[0], "--page", tmp_path / "page.html")
    assert code == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_page_that_cannot_be_written(demo, tmp_path):
    code, _, err = here("report", demo[0], "--page", tmp_path)
    assert code == 2
    assert "cannot write" in err
