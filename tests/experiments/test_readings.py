"""reading=text and reading=code: all open points of the GCR paper at once."""

from pathlib import Path

import pytest
from gcr.experiments.readings import READINGS
from made_runs import put_run, square

from gcr.analysis.load import read_runs
from gcr.analysis.tables import distinctions
from gcr.experiments import readings
from gcr.experiments.experiment import compose, differing, settings_of
from gcr.paper.plan import Request, make_plan
from gcr.settings import BadInput


def gcr(**given):
    return compose("seq-digits", "gcr", overrides=given)


def told(experiment):
    parts = (experiment.method, experiment.memory, experiment.memory.selector)
    return {name: getattr(part, name) for part in parts for name in READINGS["text"] if hasattr(part, name)}


@pytest.mark.parametrize("reading", READINGS)
def test_a_reading_stands_for_every_open_point(reading):
    assert told(gcr(reading=reading)) == READINGS[reading]
    assert gcr(reading=reading) == gcr(**READINGS[reading])


def test_the_two_readings_differ_everywhere():
    points = {key.rsplit(".", 1)[-1] for key in differing(gcr(reading="text"), gcr(reading="code"))}
    assert points == READINGS["text"].keys() == READINGS["code"].keys()


def test_a_single_setting_stands_beside_a_reading():
    assert told(gcr(reading="code", contrast="features")) == READINGS["code"] | {"contrast": "features"}


def test_in_one_pass_the_code_admits_every_example():
    assert told(gcr(reading="code", setting="online")) == READINGS["code"] | {"admit": "all"}


def test_what_another_loss_or_memory_does_not_have_is_left_out():
    er = compose("seq-digits", "er", selector="grad-approx", overrides={"reading": "code"})
    assert told(er) == {k: v for k, v in READINGS["code"].items() if k not in ("normalise", "contrast")}
    gem = compose("seq-digits", "gem", selector="grad-approx", overrides={"reading": "code"})
    assert (gem.memory.admit, gem.memory.sampling) == ("correct", "coin")
    reservoir = compose("seq-digits", "gcr", selector="reservoir", overrides={"reading": "text"})
    usual = compose("seq-digits", "gcr", selector="reservoir")
    assert {key.rsplit(".", 1)[-1] for key in differing(reservoir, usual)} == {
        "normalise",
        "contrast",
        "sampling",
        "admit",
    }


def test_methods_without_open_points_refuse_a_reading():
    with pytest.raises(BadInput, match="er has no use for reading"):
        compose("seq-digits", "er", overrides={"reading": "code"})
    with pytest.raises(BadInput, match="reading must be one of text, code"):
        gcr(reading="paper")


def test_of_several_methods_only_those_of_gcr_take_it():
    assert settings_of("er", {"reading": "code"}, several=True) == {}
    assert settings_of("gcr", {"reading": "code"}, several=True) == {"reading": "code"}


def test_offline_gcr_is_as_the_code_has_it_and_online_neither():
    assert gcr() == gcr(reading="code")
    assert told(gcr(setting="online")) == READINGS["text"] | {"normalise": "weights"}
    er = compose("seq-digits", "er", selector="grad-approx")
    assert er == compose("seq-digits", "er", selector="grad-approx", overrides={"reading": "text"})


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"pool": "selector"}, ("admit", "pool_view", "atoms")),
        ({"epochs": "1"}, ("admit",)),
        ({"every": "64"}, ("shares", "atoms")),
        ({"trim": 0.1}, ("negative", "atoms")),
        ({"rows": "random"}, ("negative", "atoms")),
        ({"replace": "3"}, ("negative", "atoms")),
        ({"tolerance": 0.1}, ("negative", "atoms")),
    ],
)
def test_what_the_code_does_not_have_takes_the_texts_points(given, texts):
    assert told(gcr(**given)) == READINGS["code"] | {name: READINGS["text"][name] for name in texts}


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0.0"])
def test_a_setting_given_at_its_usual_value_changes_nothing(nothing):
    numbers = dict.fromkeys(("every", "trim", "replace", "tolerance"), nothing)
    assert gcr(pool="reservoir", rows="matched", setting="offline", epochs="10", **numbers) == gcr()


@pytest.mark.parametrize("selector", ["herding", "bilevel", "class-balanced", "reservoir"])
def test_what_the_code_shows_to_selection_is_for_its_own_selector(selector):
    other = compose("seq-digits", "gcr", selector=selector)
    assert (other.memory.pool_view, other.memory.pool_mode) == ("plain", "evaluation")
    assert (other.memory.admit, other.method.contrast) == ("correct", "logits")
    assert readings.nearest(other.by_name) == "code"


def test_tables_say_the_reading_instead_of_its_settings(tmp_path):
    kinds = {
        "usual": {},
        "text": {"reading": "text", "gamma": 0.2},
        "near": {"reading": "text", "normalise": "weights"},
        "single": {"contrast": "features"},
        "gives way": {"trim": 0.1},
    }
    for name, given in kinds.items():
        put_run(tmp_path, gcr(**given), square(50.0), name)
    groups = {g.folders[0].path.parent.name: g for g in read_runs(tmp_path).groups}
    assert distinctions([groups[name] for name in kinds]) == [
        "gamma=0.1",
        "gamma=0.2, reading=text",
        "gamma=0.1, reading=text, normalise=weights",
        "gamma=0.1, contrast=features",
        "gamma=0.1, trim=0.1",
    ]


def test_a_label_claims_no_reading_for_a_method_that_has_none(tmp_path):
    points = {"sampling": "split", "admit": "correct", "pool_view": "weak", "pool_mode": "training"}
    put_run(tmp_path, compose("seq-digits", "er", selector="herding", overrides=points), square(50.0))
    told = distinctions(read_runs(tmp_path).groups)
    assert told == ["pool_view=weak, pool_mode=training, sampling=split, admit=correct"]


def test_reproduce_gives_it_to_rows_that_it_changes_alone():
    request = Request("offline-accuracy", ("seq-cifar10",), ("er", "gcr"), (500,), (0,), reading="text")
    jobs = make_plan(request, Path("out")).jobs()
    paths = {job.experiment.method.name: job.folder.path.parent.name for job in jobs}
    assert "reading" not in paths["er"]
    assert paths["gcr"].endswith("-readingtext")
    assert all(told(job.experiment) == READINGS["text"] for job in jobs if job.experiment.method.name == "gcr")
    both = Request("er-gcr", buffers=(500,), seeds=(0,), reading="code")
    names = {job.folder.path.parent.name for job in make_plan(both, Path("out")).jobs()}
    assert any("grad-approx" in name and name.endswith("-readingcode") for name in names)


def test_reproduce_with_the_usual_reading_finds_the_usual_runs():
    asked = {"scenarios": ("seq-cifar10",), "methods": ("gcr",), "buffers": (500,), "seeds": (0,)}
    usual, code = (make_plan(Request("offline-accuracy", **asked, reading=r), Path("out")) for r in (None, "code"))
    assert [job.folder.path for job in usual.jobs()] == [job.folder.path for job in code.jobs()]


def test_an_unknown_reading_is_refused_even_where_nothing_takes_it():
    with pytest.raises(BadInput, match="reading must be one of text, code"):
        Request("offline-accuracy", methods=("er",), reading="paper")
    with pytest.raises(BadInput, match="reading must be one of text, code"):
        settings_of("er", {"reading": "paper"}, several=True)
    with pytest.raises(BadInput, match="reading must be one of text, code"):
        gcr(reading="")
