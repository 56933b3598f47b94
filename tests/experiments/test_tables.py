import json

import pytest

from gcr.experiments.experiment import compose
from gcr.experiments.run_folder import RunFolder
from gcr.experiments.statistics import spread
from gcr.experiments.tables import columns, read_groups, table
from gcr.settings import BadInput


def put(out, method, seed, accuracy, name=None, **overrides):
    experiment = compose("seq-digits", method, seed=seed, overrides=overrides)
    folder = RunFolder.of(out, experiment, name)
    folder.begin(experiment)
    view = {"matrix": [[accuracy] * 5] * 5, "accuracy": accuracy, "forgetting": 1.0}
    folder.finish(
        {"class_il": view, "task_il": view, "seconds": 2.0, "steps": 9, "device": "cpu", "versions": {}}, None
    )
    return folder


def test_mean_and_sem():
    assert str(spread([10.0, 12.0, 14.0])) == "12.00 ± 1.15"
    assert str(spread([10.0])) == "10.00"
    assert spread([10.0, None]) is None
    assert spread([]) is None


def test_rows_are_groups_of_seeds(tmp_path):
    for seed, accuracy in ((2, 14.0), (0, 10.0), (1, 12.0)):
        put(tmp_path, "er", seed, accuracy)
    put(tmp_path, "finetune", 0, 3.0)
    groups = read_groups(tmp_path)
    assert [group.seeds for group in groups] == [[0], [0, 1, 2]]  # finetune is listed first
    rows = table(groups)
    assert rows[1] == ["er", "100", "3", "12.00 ± 1.15", "1.00 ± 0.00", "12.00 ± 1.15", "1.00 ± 0.00", "2.0"]
    assert rows[0][:4] == ["finetune", "–", "1", "3.00"]
    assert all(len(row) == len(columns()) for row in rows)


def test_rows_of_one_label_say_what_tells_them_apart(tmp_path):
    put(tmp_path, "er", 0, 10.0, name="slow", lr=0.01)
    put(tmp_path, "er", 0, 12.0, name="fast", lr=0.1)
    assert [row[0] for row in table(read_groups(tmp_path))] == ["er (lr=0.1)", "er (lr=0.01)"]  # by folder


def test_the_same_experiment_in_two_folders_is_two_rows(tmp_path):
    put(tmp_path, "er", 0, 10.0, name="a")
    put(tmp_path, "er", 0, 10.0, name="b")
    assert [row[0] for row in table(read_groups(tmp_path))] == ["er (folder=a)", "er (folder=b)"]


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(BadInput, match="is not a folder"):
        read_groups(tmp_path / "none")
    with pytest.raises(BadInput, match="no finished runs"):
        read_groups(tmp_path)
    folder = put(tmp_path, "er", 0, 10.0)
    (folder.path / "result.json").write_text(json.dumps({"class_il": {}}))
    with pytest.raises(BadInput, match="seed-0 cannot be read"):
        read_groups(tmp_path)
