"""GCR.paper and GCR.released: all details in which the GCR paper and its released code differ, at once; and defaults of
single methods."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest
from made_runs import put_run, square

from gcr.analysis.load import read_runs
from gcr.analysis.tables import distinctions
from gcr.experiments import plugins, variants
from gcr.experiments.describe import differing, setting_lines
from gcr.experiments.experiment import compose, owners_of, settings_of
from gcr.experiments.optimizers import OptimizerSpec
from gcr.experiments.variants import GCR, PAPER, RELEASED, VARIANTS
from gcr.memory import Policy
from gcr.methods import METHODS, DerPlusPlus, Gcr, GcrPlus, Icarl, Mir
from gcr.paper.plan import Request, make_plan
from gcr.select import GradApprox
from gcr.settings import BadInput, setting, setting_names

ONLINE_LR = {"lr": 0.01}
# What a method has of loss, memory and optimizer on S-CIFAR-10, beyond the defaults of fields: offline, and online.
OWN_DEFAULTS = {method.name: ({}, ONLINE_LR) for method in METHODS} | {
    "icarl": ({"weight_decay": 1e-5}, ONLINE_LR | {"weight_decay": 1e-5}),
    "mir": ({"virtual_lr": 0.03}, ONLINE_LR | {"virtual_lr": 0.01}),
    "der++": ({}, ONLINE_LR | {"alpha": 0.5, "beta": 2.0}),
    "gcr": (
        {"admit": "correct", "pool_mode": "class", "pool_view": "weak", "sampling": "split"},
        ONLINE_LR | {"alpha": 1.0, "beta": 3.0, "gamma": 1.0, "contrast": "features"},
    ),
    "gcr+": ({"weight_decay": 5e-4}, {"weight_decay": 5e-4}),
    "joint": ({}, {}),
}


def own_defaults(method, online):
    made = compose("seq-cifar10", method, overrides={"online": online})
    parts = [(made.method, type(made.method)), (made.memory, Policy), (made.optimizer, OptimizerSpec)]
    declared = [(part, field) for part, kind in parts if part is not None for field in fields(kind)]
    found = {f.name: getattr(part, f.name) for part, f in declared if getattr(part, f.name) != f.default}
    return {name: value for name, value in found.items() if name not in ("buffer", "selector")}


@dataclass(frozen=True)
class Mine(Gcr):
    name: ClassVar[str] = "mine"


@dataclass(frozen=True)
class MineOfMine(Mine):
    name: ClassVar[str] = "mine-of-mine"


@pytest.fixture
def with_methods(monkeypatch):
    """A function that adds methods of one's own to the list."""

    def add(*methods):
        monkeypatch.setattr(plugins, "METHODS", (*METHODS, *methods))

    return add


def gcr(**given):
    return compose("seq-digits", "gcr", overrides=given)


def details(experiment):
    return {key: value for key, value in experiment.settings.items() if key in PAPER}


def same(bundle, experiment):
    return (bundle.method, bundle.memory) == (experiment.method, experiment.memory)


@pytest.mark.parametrize("size", [20, 500])
def test_the_default_in_python_is_that_of_the_command_line(size):
    assert same(GCR(size), gcr(buffer=size))
    assert same(GCR(size, online=True), gcr(buffer=size, online=True))
    assert same(GCR(size, epochs=1), gcr(buffer=size, epochs=1))


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_bundles_are_the_variants_of_the_command_line(variant, online):
    bundle = getattr(GCR, variant)(50, online=online)
    assert same(bundle, gcr(variant=variant, buffer=50, online=online))


def test_a_bundle_takes_settings_by_name_and_is_frozen():
    bundle = GCR.paper(40, alpha=0.2, replay_batch=16, ridge=0.1)
    assert same(bundle, gcr(variant="paper", buffer=40, alpha=0.2, replay_batch=16, ridge=0.1))
    assert bundle == GCR.paper(40, alpha=0.2, replay_batch=16, ridge=0.1)
    assert hash(bundle) != hash(GCR(40))
    with pytest.raises(AttributeError):
        bundle.method = Gcr()
    with pytest.raises(BadInput, match=r'unknown setting of GCR "alhpa" .did you mean "alpha"'):
        GCR(alhpa=1)


@pytest.mark.parametrize(("variant", "settings"), VARIANTS.items())
def test_a_variant_sets_every_detail(variant, settings):
    assert details(gcr(variant=variant)) == settings
    assert gcr(variant=variant) == gcr(**settings)


def test_the_two_variants_differ_everywhere():
    assert set(differing(gcr(variant="paper"), gcr(variant="released"))) == PAPER.keys() == RELEASED.keys()


def test_a_single_setting_changes_a_variant():
    assert details(gcr(variant="released", contrast="features")) == RELEASED | {"method.contrast": "features"}


def test_in_one_pass_the_released_code_admits_every_example():
    for given in ({"online": True}, {"epochs": "1"}, {"training.epochs": 1}):
        assert details(gcr(variant="released", **given)) == RELEASED | {"memory.admit": "all"}
    assert GCR.released(epochs=1).memory.admit == GCR.released(online=True).memory.admit == "all"
    assert GCR.released(epochs=2).memory.admit == "correct"


def test_another_loss_or_selector_takes_its_half():
    er = compose("seq-digits", "er", selector="grad-approx", overrides={"variant": "released"})
    assert details(er) == {key: value for key, value in RELEASED.items() if not key.startswith("method.")}
    gem = compose("seq-digits", "gem", selector="grad-approx", overrides={"variant": "released"})
    assert (gem.memory.admit, gem.memory.sampling) == ("correct", "coin")  # gem ignores sampling
    reservoir = compose("seq-digits", "gcr", selector="reservoir", overrides={"variant": "paper"})
    usual = compose("seq-digits", "gcr", selector="reservoir")
    assert set(differing(reservoir, usual)) == {
        "method.normalise",
        "method.contrast",
        "memory.sampling",
        "memory.admit",
    }


def test_methods_without_variants_refuse_one():
    with pytest.raises(BadInput, match="er has no variants; leave out variant, or use method gcr"):
        compose("seq-digits", "er", overrides={"variant": "released"})
    for unknown in ("text", ""):
        with pytest.raises(BadInput, match=f'unknown variant "{unknown}"; known: paper, released'):
            gcr(variant=unknown)


def test_of_several_methods_only_gcr_takes_it():
    assert settings_of("er", {"variant": "released"}, several=True) == {}
    assert settings_of("gcr", {"variant": "released"}, several=True) == {"variant": "released"}
    with pytest.raises(BadInput, match="unknown variant"):
        settings_of("er", {"variant": "code"}, several=True)


def test_offline_gcr_is_the_released_code_and_online_neither():
    assert gcr() == gcr(variant="released")
    assert details(gcr(online=True)) == PAPER | {"method.normalise": "weights"}
    er = compose("seq-digits", "er", selector="grad-approx")
    assert er == compose("seq-digits", "er", selector="grad-approx", overrides={"variant": "paper"})


@pytest.mark.parametrize(
    ("given", "remedies"),
    [
        ({"tolerance": 0.1}, ["selector.negative=excluded"]),
        ({"trim": 0.1}, ["selector.negative=excluded"]),
        ({"rows": "random"}, ["selector.negative=excluded"]),
        ({"replace": "3"}, ["selector.negative=excluded"]),
        ({"every": "64"}, ["selector.shares=class"]),
        ({"pool": "selector"}, ["memory.admit=all", "memory.pool_view=plain", "selector.atoms=plain"]),
    ],
)
def test_what_the_released_code_does_not_have_is_refused_with_a_remedy(given, remedies):
    chosen = dict(given)
    for remedy in remedies:
        with pytest.raises(BadInput) as caught:
            gcr(**chosen)
        assert f"add --set {remedy} or use --variant paper" in str(caught.value)
        key, value = remedy.split("=")
        chosen[key] = value
    assert details(gcr(**chosen)) == RELEASED | {key: value for key, value in chosen.items() if "." in key}
    assert details(gcr(variant="paper", **given)) == PAPER


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0.0"])
def test_a_setting_at_its_default_changes_nothing(nothing):
    numbers = dict.fromkeys(("every", "trim", "replace", "tolerance"), nothing)
    assert gcr(pool="reservoir", rows="matched", online="false", epochs="10", **numbers) == gcr()


@pytest.mark.parametrize("selector", ["herding", "bilevel", "class-balanced", "reservoir"])
def test_what_selection_sees_belongs_to_grad_approx(selector):
    other = compose("seq-digits", "gcr", selector=selector)
    assert (other.memory.pool_view, other.memory.pool_mode) == ("plain", "evaluation")
    assert (other.memory.admit, other.method.contrast) == ("correct", "logits")
    assert variants.nearest(other.settings, Gcr) == ("released", {})


def test_every_detail_is_a_setting_of_its_owner():
    owners = owners_of(Gcr, GradApprox)
    for key in PAPER:
        owner, name = key.split(".")
        assert name in setting_names(owners[owner])


def test_tables_name_the_variant_instead_of_its_settings(tmp_path):
    kinds = {
        "usual": {},
        "text": {"variant": "paper", "gamma": 0.2},
        "near": {"variant": "paper", "normalise": "weights"},
        "single": {"contrast": "features"},
        "two": {"trim": 0.1, "negative": "excluded"},
    }
    for name, given in kinds.items():
        put_run(tmp_path, gcr(**given), square(50.0), name)
    groups = {g.folder.name: g for g in read_runs(tmp_path).groups}
    assert distinctions([groups[name] for name in kinds]) == [
        "gamma=0.1",
        "gamma=0.2, variant=paper",
        "gamma=0.1, variant=paper, normalise=weights",
        "gamma=0.1, contrast=features",
        "gamma=0.1, trim=0.1, negative=excluded",
    ]


def test_a_label_names_no_variant_of_a_method_that_has_none(tmp_path):
    points = {"sampling": "split", "admit": "correct", "pool_view": "weak", "pool_mode": "training"}
    put_run(tmp_path, compose("seq-digits", "er", selector="herding", overrides=points), square(50.0))
    texts = distinctions(read_runs(tmp_path).groups)
    assert texts == ["pool_view=weak, pool_mode=training, sampling=split, admit=correct"]


def test_reproduce_gives_it_to_rows_that_it_changes_alone():
    request = Request("offline-accuracy", ("seq-cifar10",), ("er", "gcr"), (500,), (0,), variant="paper")
    jobs = make_plan(request, Path("out")).jobs()
    paths = {job.experiment.method.name: job.folder.path.parent.name for job in jobs}
    assert "variant" not in paths["er"]
    assert paths["gcr"].endswith("-variantpaper")
    assert all(details(job.experiment) == PAPER for job in jobs if job.experiment.method.name == "gcr")
    both = Request("er-gcr", buffers=(500,), seeds=(0,), variant="released")
    names = {job.folder.path.parent.name for job in make_plan(both, Path("out")).jobs()}
    assert any("grad-approx" in name and name.endswith("-variantreleased") for name in names)


def test_reproduce_with_the_default_variant_finds_the_usual_runs():
    asked = {"scenarios": ("seq-cifar10",), "methods": ("gcr",), "buffers": (500,), "seeds": (0,)}
    usual, same = (make_plan(Request("offline-accuracy", **asked, variant=v), Path("out")) for v in (None, "released"))
    assert [job.folder.path for job in usual.jobs()] == [job.folder.path for job in same.jobs()]


def test_an_unknown_variant_is_refused_even_where_nothing_takes_it():
    with pytest.raises(BadInput, match="unknown variant"):
        Request("offline-accuracy", methods=("er",), variant="text")


@pytest.mark.parametrize("method", OWN_DEFAULTS)
def test_defaults_of_methods(method):
    assert (own_defaults(method, False), own_defaults(method, True)) == OWN_DEFAULTS[method]


@pytest.mark.parametrize("parent", [DerPlusPlus, Gcr, GcrPlus, Icarl, Mir])
def test_a_method_that_inherits_has_its_parents_defaults(parent, with_methods):
    heir = dataclass(frozen=True)(type("Heir", (parent,), {"name": "heir", "__annotations__": {"name": ClassVar[str]}}))
    with_methods(heir)
    assert (own_defaults("heir", False), own_defaults("heir", True)) == OWN_DEFAULTS[parent.name]


def test_defaults_that_a_method_declares_itself_win(with_methods):
    @dataclass(frozen=True)
    class Again(Mine):
        name: ClassVar[str] = "again"
        beta: float = setting(30.0, "weight of the label term")
        contrast: str = setting("features", "what is contrasted", choices=("features", "logits"))

    @dataclass(frozen=True)
    class OfAgain(Again):
        name: ClassVar[str] = "of-again"

    @dataclass(frozen=True)
    class Ahead(Mir):
        name: ClassVar[str] = "ahead"
        virtual_lr: float = setting(0.7, "step ahead")

    with_methods(Again, OfAgain, Ahead)
    for name in ("again", "of-again"):
        offline, online = (compose("seq-digits", name, overrides={"online": o}).method for o in (False, True))
        assert (offline.beta, offline.contrast, offline.alpha) == (30.0, "features", 0.1)
        assert (online.beta, online.contrast, online.alpha) == (30.0, "features", 1.0)
        assert compose("seq-digits", name, overrides={"variant": "released"}).method.contrast == "logits"
    assert compose("seq-digits", "ahead").method.virtual_lr == 0.7


@pytest.mark.parametrize("method", ["mine", "mine-of-mine"])
def test_what_inherits_from_gcr_has_its_variants(method, with_methods):
    with_methods(Mine, MineOfMine)
    for variant, settings in VARIANTS.items():
        assert details(compose("seq-digits", method, overrides={"variant": variant})) == settings
    shown = {key: (text, default) for key, text, default in setting_lines("seq-digits", method)}
    assert shown == {key: (text, default) for key, text, default in setting_lines("seq-digits", "gcr")}
    assert settings_of(method, {"variant": "paper"}, several=True) == {"variant": "paper"}
