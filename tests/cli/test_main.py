"""The command line through its real entry point, as a user calls it."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from conftest import HANG_SECONDS, ROOT
from made_runs import experiment_of, put_run, square

from gcr.cli.listing import described
from gcr.cli.main import run_cli
from gcr.memory import POLICIES
from gcr.methods import METHODS

QUICK = ["--epochs", "1", "--model", "mlp"]


def gcr(*arguments):
    command = [sys.executable, "-m", "gcr", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)


def here(*arguments):
    """In this process: a new one takes seconds to import torch, as do the workers that train several runs."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run_cli([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def refused(done, *parts):
    """One line, exit code 2, no traceback."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.slow
def test_run_as_in_the_help(tmp_path):
    done = gcr(
        *("run", "seq-digits", "--method", "gcr", "--buffer", "50", *QUICK, "--seeds", "0,1"),
        *("--set", "lr=0.03", "--set", "alpha=0.1", "--out", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    experiment = json.loads((tmp_path / "seq-digits-gcr-k50/seed-1/experiment.json").read_text())
    assert experiment["optimizer"]["lr"] == 0.03
    assert experiment["method"]["alpha"] == 0.1
    assert experiment["memory"]["buffer"] == 50
    assert re.search(r"│ gcr +│ +50 │ +2 │", done.stdout)
    assert done.stderr == ""  # quiet where there is no terminal


def test_gcr_selection_under_ers_loss(tmp_path):
    done = here("run", "seq-digits", "--method", "er", "--selector", "grad-approx", *QUICK, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "er + grad-approx" in done.stdout
    assert (tmp_path / "seq-digits-er-grad-approx-k100/seed-0/result.json").exists()


def test_a_failed_run_is_exit_code_1(tmp_path):
    """A network that overflows: the run fails when its loss or weights are NaN or inf."""
    done = here("run", "seq-digits", "--method", "er", *QUICK, "--set", "lr=1e30", "--out", tmp_path)
    assert done.returncode == 1
    assert "failed: seq-digits-er-k100 seed 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "seq-digits-er-k100/seed-0/result.json").exists()


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", ["finetune", "joint", "er", "der", "der++", "gcr"]),
        ("scenarios", ["seq-digits"]),
        ("selectors", ["reservoir", "grad-approx", "class-balanced", "uniform"]),
    ],
)
def test_lists_say_what_exists(what, names):
    done = here(what)
    assert done.returncode == 0
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert set(names) <= set(lines)


def test_lists_are_those_of_the_classes():
    assert described("METHODS", "methods") == [(each.name, each.summary, "") for each in METHODS]
    assert described("POLICIES", "memory", "select") == [(each.name, each.summary, "") for each in POLICIES]


def test_what_only_says_what_there_is_imports_no_torch():
    code = """
import sys
from gcr.cli.main import run_cli
for words in (["--help"], ["methods"], ["selectors"], ["run", "--help"]):
    assert run_cli(words) == 0
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr


def test_settings_of_a_method():
    done = here("settings", "gcr")
    assert done.returncode == 0
    for name in ("variant", "method.alpha", "selector.ridge", "optimizer.lr", "memory.buffer"):
        assert re.search(rf"^{re.escape(name)} ", done.stdout, re.M)
    assert "memory.sampling" not in done.stdout
    assert len(done.stdout.splitlines()) < 20
    everything = here("settings", "gcr", "--all")
    assert "memory.sampling" in everything.stdout
    assert "selector.atoms" in everything.stdout


@pytest.mark.parametrize("command", [[], ["run"], ["table"], ["demo"]])
def test_help_has_examples(command):
    done = here(*command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout


def test_version():
    assert re.fullmatch(r"gcr \d+\.\d+\.\d+\n", here("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--method", "grc"], ['unknown method "grc"', 'did you mean "gcr"', "der++"]),
        (["--method", "mine"], ['unknown method "mine"', "one of your own: gcr --plugin FILE"]),
        (["--method", "gcrplus"], ['unknown method "gcrplus" (did you mean "gcr+"?)']),
        (["--selector", "gradapprox"], ['unknown selector "gradapprox"', 'did you mean "grad-approx"']),
        (["--model", "resnet"], ['unknown model "resnet"', 'did you mean "resnet18"']),
        (["--set", "alhpa=1"], ['unknown setting of gcr "alhpa"', 'did you mean "alpha"']),
        (["--set", "alpha"], ["--set must be given as name=value"]),
        (["--set", "alpha=-0.5"], ["alpha must be >= 0.0, got -0.5"]),
        (["--set", "alpha=much"], ["alpha must be a finite number"]),
        (["--set", "epochs=2", "--epochs", "3"], ["epochs is given twice"]),
        (["--buffer", "5"], ["buffer must be >= 10", "seq-digits", "got 5"]),
        (["--buffer", "0"], ["buffer must be >= 1", "finetune"]),
        (["--epochs", "0"], ["epochs must be >= 1, got 0"]),
        (["--epochs", "two"], ["epochs"]),
        (["--seeds", "0,1,0"], ["seeds must be different, got 0 more than once"]),
        (["--seeds", "0-2,1"], ["got 1 more than once"]),
        (["--seeds", "a"], ["seeds must be whole numbers"]),
        (["--seeds", "3-1"], ["rising order"]),
        (["--device", "tpu9"], ["device must be auto, cpu or cuda"]),
        (["--method", "joint", "--buffer", "50"], ["joint keeps no memory"]),
        (["--nonsense"], ["--nonsense"]),
        (["--seeds", "0-99999999999"], ["at most 10,000"]),
        (["--seeds", "99999999999"], ["seed must be a whole number from 0 to 2^32 - 1"]),
        (["--name", "../elsewhere"], ["name must be letters"]),
        (["--device", "meta"], ["device must be auto, cpu or cuda"]),
        (["--vary", "gamma"], ["--vary must be given as name=value,value"]),
        (["--vary", "gamma=0,"], ["--vary must be given as name=value,value"]),
        (["--vary", "gamma=1,1.0"], ["--vary has a value twice"]),
        (["--vary", "gamma=0", "--vary", "gamma=1"], ["gamma is varied twice"]),
        (["--vary", "gamma=0,1", "--set", "gamma=1"], ["gamma is given twice, once by --vary"]),
        (["--vary", "selector=uniform", "--selector", "uniform"], ["selector is given twice, once by --vary"]),
        (["--vary", "gamma=0,1", "--method", "er,gcr"], ["--vary is for one method at a time"]),
        (["--vary", "method=er,gcr"], ["--method er,gcr"]),
        (["--method", "er,er"], ["--method has a method twice"]),
        (["--vary", "selector=grad-approx,uniform", "--set", "ridge=1"], ['unknown setting of gcr + uniform "ridge"']),
    ],
)
def test_bad_input_to_run(arguments, parts, tmp_path):
    refused(here("run", "seq-digits", *arguments, "--out", tmp_path / "runs"), *parts)
    assert not (tmp_path / "runs").exists()


def test_a_varied_variant_is_shown_and_so_is_what_was_set(tmp_path):
    command = ["run", "seq-digits", *QUICK, "-k", "20", "--processes", "1", "--out", tmp_path]
    done = here(*command, "--vary", "variant=paper,released", "--set", "lr=0.03")
    assert "gcr (variant=paper)" in done.stdout
    assert "gcr (variant=released)" in done.stdout
    assert "given: lr=0.03, epochs=1, model=mlp" in done.stdout


def test_variants_have_folders_of_their_own_and_one_table(tmp_path):
    command = ["run", "seq-digits", "--method", "er", *QUICK, "--processes", "1", "--out", tmp_path]
    done = here(*command, "--vary", "selector=reservoir,uniform", "--vary", "lr=0.010, 0.1", "--vary", "buffer=20")
    assert done.returncode == 0
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "seq-digits-er-k20-lr0.01",
        "seq-digits-er-k20-lr0.1",
        "seq-digits-er-uniform-k20-lr0.01",
        "seq-digits-er-uniform-k20-lr0.1",
    ]
    for row in ("er (lr=0.01)", "er (lr=0.1)", "er + uniform (lr=0.01)", "er + uniform (lr=0.1)"):
        assert row in done.stdout
    assert "given: epochs=1, model=mlp" in done.stdout
    part = here("table", tmp_path, "--method", "er", "--scenario", "seq-digits,")
    assert "er + uniform (lr=0.01)" in part.stdout
    refused(here("table", tmp_path, "--method", "gcr"), 'unknown method here "gcr"; known: er')
    assert "er + uniform (lr=0.01)" in here("table", tmp_path, "--buffer", "20").stdout
    refused(here("table", tmp_path, "-k", "30"), 'unknown buffer here "30"; known: 20')
    table = here("table", tmp_path, "--paper", "online-accuracy", "--method", "mir", "--scenario", "seq-tinyimagenet")
    assert table.stdout.count("missing") == 3
    one = here("table", tmp_path, "--paper", "online-accuracy", "--method", "mir", "--buffer", "500")
    assert one.stdout.count("missing") == 3  # one for each data set
    refused(
        here("table", tmp_path, "--paper", "online-accuracy", "--method", "joint"),
        "method must be one of er, gem, ",
        "in online-accuracy, got joint",
    )
    named = here(*command, "--vary", "buffer=20,30", "--name", "mine")
    assert named.returncode == 0
    assert {"mine-buffer20", "mine-buffer30"} < {folder.name for folder in tmp_path.iterdir()}


HEAD = (
    "first_name,second_name,protocol,metric,first,second,difference,sem,n,n_second,test,p,effect,p_holm,low95,high95,"
    "first_bytes,second_bytes"
)


def test_two_experiments_are_compared_on_equal_seeds(tmp_path):
    command = ["run", "seq-digits", "--method", "er", "--epochs", "1", "--model", "mlp", "--seeds", "0,1"]
    assert here(*command, "--vary", "lr=0.01,0.1", "--processes", "1", "--out", tmp_path).returncode == 0
    folders = [tmp_path / f"seq-digits-er-k100-lr{lr}" for lr in (0.1, 0.01)]
    done = here("compare", *folders, "--metrics", "accuracy", "--format", "csv")
    assert done.stdout.startswith(f"{HEAD}\n{folders[0].name},{folders[1].name},class-il,accuracy,")
    several = here("compare", *folders, folders[0], "--metrics", "accuracy,accuracy", "--format", "json")
    assert [row["second_name"] for row in json.loads(several.stdout)] == [folders[n].name for n in (1, 1, 0, 0)]
    refused(here("compare", folders[0]), "Missing argument 'OTHERS...'")
    assert "they differ in optimizer.lr (0.1, 0.01)" in here("compare", *folders).stdout
    assert "unpaired (asked for, 2 common)" in here("compare", *folders, "--unpaired").stdout
    refused(here("compare", *folders, "--metrics", "speed"), 'unknown metric "speed"')
    refused(here("compare", folders[0], tmp_path), "holds 2 experiments")
    refused(here("compare", folders[0], tmp_path / "nowhere"), "is not a folder")


def test_what_a_table_says_of_two_experiments_their_comparison_says_too(tmp_path):
    for method, version in (("er", "1"), ("icarl", "2")):
        put_run(tmp_path, experiment_of(method, online=True), square(50.0), name=method, versions={"gcr": version})
    table, both = here("table", tmp_path).stdout, here("compare", tmp_path / "er", tmp_path / "icarl").stdout
    for note in ("icarl evaluated at the ends of tasks", "mixed versions of gcr: 1 (1), 2 (1) runs"):
        assert note in " ".join(table.split())
        assert note in " ".join(both.split())
    assert "mixed" not in here("compare", tmp_path / "er", tmp_path / "er").stdout


def test_unknown_scenario(tmp_path):
    refused(here("run", "seq-digit", "--out", tmp_path), 'did you mean "seq-digits"')


def test_unknown_command():
    refused(here("trian"), "trian")


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(here("run", "seq-digits", *QUICK, "--out", tmp_path / "file"), "cannot write to", "choose another --out")
    assert (tmp_path / "file").read_text() == "mine"


def test_another_experiment_in_the_folder(tmp_path):
    arguments = ["run", "seq-digits", "--method", "er", *QUICK, "--out", tmp_path]
    assert here(*arguments).returncode == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    refused(here(*arguments, "--set", "lr=0.5"), "optimizer.lr is 0.1 there, 0.5 here", "--name")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_refusal_leaves_no_folders(tmp_path):
    arguments = ["run", "seq-digits", "--method", "er", *QUICK, "--out", tmp_path]
    assert here(*arguments).returncode == 0
    refused(here(*arguments, "--seeds", "1,0", "--set", "lr=0.5"), "optimizer.lr")
    assert not (tmp_path / "seq-digits-er-k100/seed-1").exists()


def test_a_broken_result_beside_it_does_not_spoil_a_run(tmp_path):
    (tmp_path / "broken/seed-0").mkdir(parents=True)
    for name in ("experiment.json", "result.json"):
        (tmp_path / "broken/seed-0" / name).write_text("{}")
    assert here("run", "seq-digits", "--method", "er", *QUICK, "--out", tmp_path).returncode == 0
    done = here("table", tmp_path)
    assert done.returncode == 0
    assert "broken/seed-0 cannot be read" in done.stderr
    assert "1 result that cannot be read is left out: broken/seed-0" in done.stdout
    assert "│ er " in done.stdout


def test_a_damaged_result_is_not_counted_as_there(tmp_path):
    command = ["run", "seq-digits", "--method", "er", *QUICK, "--out", tmp_path]
    assert here(*command).returncode == 0
    (file,) = tmp_path.rglob("result.json")
    file.write_bytes(file.read_bytes().replace(b'"steps": ', b'"steps": 1', 1))
    done = here(*command)
    assert done.returncode == 1
    assert "1 of 1 runs were there already, 1 of them damaged: move what is named below away" in done.stderr
    assert f"left out: {file.parent} cannot be read (result.json is damaged: its digest is wrong)" in done.stderr


HOSTILE = "er\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\nforged line"


def test_names_of_folders_are_text_to_the_terminal(made, tmp_path):
    """Escape sequences, C1 controls, reversed writing and ends of lines are shown, not obeyed."""
    folder = next(made.glob("*/seed-0")).parent
    folder.rename(made / HOSTILE)
    for seed in (0, 1):
        put_run(made, experiment_of("gcr", seed=seed, buffer=70), square(40.0), name=f"x{HOSTILE}")
    (made / f"x{HOSTILE}" / "seed-1" / "result.json").write_text("{")
    for words in (
        ("table", made),
        ("table", made, "--format", "markdown"),
        ("table", made / HOSTILE / "none"),
        ("results", "list", made),
        ("verify", made),
        ("compare", made / HOSTILE, made / f"x{HOSTILE}"),
        ("run", HOSTILE),
    ):
        done = here(*words)
        shown = done.stdout + done.stderr
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]|^forged", shown, re.M), shown
    assert r"er\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\nforged line" in here("results", "list", made).stdout


def test_a_locale_without_our_signs(made):
    env = os.environ | {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "gcr", "table", str(made)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=HANG_SECONDS)
    table = [line for line in done.stdout.decode("ascii").splitlines() if line.startswith("|")]
    assert done.returncode == 0
    assert any(" +/- " in line for line in table)
    assert len({len(line) for line in table}) == 1
    assert b"?" not in done.stdout


def test_no_arguments_show_the_help():
    done = here()
    assert "Usage" in done.stdout + done.stderr
    assert "error:" not in done.stderr


@pytest.fixture
def made(tmp_path):
    """ER with three seeds, GCR with one."""
    for seed, value in enumerate((89.0, 90.0, 91.0)):
        put_run(tmp_path, experiment_of("er", seed=seed, buffer=100), square(value))
    put_run(tmp_path, experiment_of("gcr", buffer=100), square(95.0))
    return tmp_path


def test_table_in_other_formats(made):
    assert "| er | 100 | 3 | 90.00 ± 0.58 |" in here("table", made, "--format", "markdown").stdout
    assert r"er & 100 & 3 & 90.00 $\pm$ 0.58 &" in here("table", made, "--format", "latex").stdout
    lines = here("table", made, "--format", "csv", "--metrics", "accuracy").stdout.splitlines()
    assert len(lines) == 1 + 2 * 2
    assert lines[0].startswith("scenario,regime,method,buffer,protocol,metric,mean")
    refused(here("table", made, "--format", "html"), 'unknown format "html"')


def test_table_beside_the_paper(made):
    done = here("table", made, "--paper", "ablation", "--format", "markdown")
    assert "| gcr without supcon | 2000 | missing | – | 0 | – | 58.35 ± 0.78 | – | – |" in done.stdout
    refused(here("table", made, "--paper", "ablaton"), 'did you mean "ablation"')
    refused(here("table", made, "--paper", "ablation", "--metrics", "anytime"), "leave out --metrics")
    refused(here("table", made, "--paper", "ablation", "--metrics", "forgetting"), "leave out --metrics")
    forgetting = ["table", made, "--paper", "online-forgetting", "--format", "markdown"]
    assert "class-IL forgetting, last stage counted" in here(*forgetting, "--metrics", "forgetting_with_last").stdout


def test_table_of_nothing(tmp_path):
    refused(here("table", tmp_path), "no finished runs")
    refused(here("table", tmp_path / "nowhere"), "is not a folder")


def test_progress_on_a_terminal(tmp_path):
    """On a terminal there is a bar with the runs, the steps and their rate."""
    parent, child = pty.openpty()
    options = ["--method", "er", "--epochs", "3", "--model", "mlp", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "gcr", "run", "seq-digits", *options]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=child, stderr=child)
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait(HANG_SECONDS) == 0
    text = shown.decode(errors="replace")
    assert "runs, er seed 0" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"\d+/138 steps, \d+/s +\d:\d\d:\d\d", plain)  # done, rate and time left
    assert "er seed 0: class-IL" in plain


def test_several_methods_online_in_one_table(tmp_path):
    done = here(
        *("run", "seq-digits", "--method", "finetune,er,gcr", "--online", "--stream", "700"),
        *("--model", "mlp", "--buffer", "50", "--processes", "1", "--out", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert "seq-digits, online" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "seq-digits-online-er-k50",
        "seq-digits-online-finetune",
        "seq-digits-online-gcr-k50",
    ]
    printed = here("table", tmp_path, "--metrics", "anytime,learning")
    assert "class-IL any-time accuracy" in " ".join(printed.stdout.split())
    refused(here("table", tmp_path, "--metrics", "speed"), 'unknown metric "speed"')


def test_settings_that_do_not_go_together(tmp_path):
    def run(*arguments):
        return here("run", "seq-digits", "--out", tmp_path, *arguments)

    refused(run("--online", "--stream", "8"), "stream must be >= batch, which is 10, got 8")
    refused(run("--online", "--epochs", "3"), "epochs must be 1 online, got 3")
    refused(run("--set", "online=sometimes"), 'online must be true or false, got "sometimes"')
    refused(run("--method", "er,gcr", "--selector", "herding"), "--selector is for one method at a time")
    refused(run("--method", "er,grc"), 'unknown method "grc" (did you mean "gcr"?)')
    refused(run("--pack", "many"), 'pack must be auto or a whole number from 1 on, got "many"')
    refused(run("--mode", "captured", "--device", "cpu"), "mode captured needs a GPU")
    refused(run("--precision", "fp8"), "precision must be one of auto, fp32, tf32, bf16")
    assert not list(tmp_path.iterdir())


def test_a_variant_has_a_folder_of_its_own(tmp_path):
    """So that the default's runs and a variant's can lie in one folder."""
    small = ("run", "seq-digits", "--method", "gcr", "--model", "mlp", "--buffer", "20", "--epochs", "1", "--no-model")
    for more in ((), ("--variant", "paper")):
        assert here(*small, *more, "--out", tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seq-digits-gcr-k20", "seq-digits-gcr-k20-variantpaper"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
def test_what_is_printed_to_a_full_disk():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "gcr", "methods"]
        ended = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANG_SECONDS)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: what is printed cannot be written")
    assert ended.stderr.count("\n") == 1
