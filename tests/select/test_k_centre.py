import sys
from itertools import combinations

import numpy as np
import pytest
import torch

import gcr
from gcr.select.coreset import Pool
from gcr.select.k_centre import KCentre, farthest_first
from gcr.settings import BadInput

k_centre_module = sys.modules["gcr.select.k_centre"]


def plain_walk(features, picks):
    """Farthest-first, a row at a time."""
    rows = list(features.double())
    mean = sum(rows) / len(rows)
    chosen = [min(range(len(rows)), key=lambda i: (rows[i] - mean).norm().item())]
    while len(chosen) < picks:
        far = {i: min((rows[i] - rows[c]).norm().item() for c in chosen) for i in range(len(rows)) if i not in chosen}
        chosen.append(max(far, key=far.get))
    return chosen


def radius(features, centres):
    return torch.cdist(features, features[list(centres)]).amin(1).amax().item()


def pool_of(features, labels=None):
    n = len(features)
    return Pool(labels=torch.zeros(n).long() if labels is None else labels, weights=torch.ones(n), features=features)


@pytest.mark.parametrize("seed", range(20))
def test_order_is_that_of_the_plain_walk(seed):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(15, 4, generator=g, dtype=torch.float64)
    picks = int(torch.randint(1, 16, (1,), generator=g))
    assert farthest_first(features, picks).tolist() == plain_walk(features, picks)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_radius_is_at_most_twice_the_best(seed, k):
    features = torch.randn(10, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    best = min(radius(features, centres) for centres in combinations(range(10), k))
    assert radius(features, farthest_first(features, k).tolist()) <= 2 * best + 1e-12


def test_every_class_is_covered_alone():
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(20, 3, generator=g), torch.arange(20) % 2 * 5
    expected = []
    for label, share in ((0, 4), (5, 3)):
        rows = torch.nonzero(labels == label).flatten()
        expected += rows[plain_walk(features[rows], share)].tolist()
    assert KCentre()(pool_of(features, labels), 7, torch.rand(20, generator=g)).rows.tolist() == sorted(expected)


def test_one_row_of_each_clump():
    features = torch.tensor([[0.0], [0.1], [10.0], [10.1], [20.0], [20.1]])
    rows = KCentre()(pool_of(features), 3, torch.zeros(6)).rows
    assert (rows // 2).tolist() == [0, 1, 2]


def test_duplicates_come_last_and_lowest_row_first():
    features = torch.tensor([[1.0], [1.0], [1.0], [4.0]])
    assert KCentre()(pool_of(features), 2, torch.zeros(4)).rows.tolist() == [0, 3]
    assert KCentre()(pool_of(features), 3, torch.zeros(4)).rows.tolist() == [0, 1, 3]


def test_one_row_and_a_budget_beyond_the_pool():
    chosen = KCentre()(pool_of(torch.zeros(1, 2)), 9, torch.zeros(1))
    assert chosen.rows.tolist() == [0]
    assert chosen.weights.tolist() == [1.0]


def test_a_budget_below_the_number_of_classes():
    assert KCentre()(pool_of(torch.eye(3), torch.arange(3)), 2, torch.zeros(3)).rows.tolist() == [0, 1]


def plain_order(features, picks, first):
    """The walk on the whole matrix, all rows for every centre."""
    features, centre, order = features.double(), torch.tensor(first[:1]), list(first)
    near = torch.full((len(features),), torch.inf, dtype=torch.float64)
    for step in range(1, picks):
        near = torch.minimum(near, torch.linalg.vector_norm(features - features[centre], dim=1))
        near[centre] = -1.0
        centre = near.argmax(0, keepdim=True) if step >= len(first) else torch.tensor(first[step : step + 1])
        order = order if step < len(first) else [*order, int(centre)]
    return order


CLOUDS = {
    "normal": lambda g: torch.randn(900, 12, generator=g),
    "wide": lambda g: torch.randn(400, 300, generator=g).relu(),
    "grid, many ties": lambda g: torch.randint(0, 3, (900, 5), generator=g).float(),
    "one column": lambda g: torch.rand(900, 1, generator=g),
    "far from zero": lambda g: torch.randn(900, 12, generator=g) * 1e-3 + 100,
    "duplicates": lambda g: torch.randn(60, 4, generator=g).repeat(15, 1),
    "huge": lambda g: torch.randn(900, 6, generator=g, dtype=torch.float64) * 1e100,
    "tiny": lambda g: torch.randn(900, 6, generator=g) * 1e-30,
    "far outliers": lambda g: torch.randn(900, 3, generator=g).index_fill(0, torch.tensor([0, 1]), 1e25),
    "half": lambda g: torch.randn(900, 6, generator=g).half(),
    "all alike": lambda g: torch.ones(900, 3),
}


@pytest.mark.parametrize("top", [7, 64])
@pytest.mark.parametrize("name", CLOUDS)
def test_blocks_give_the_plain_walk(name, top, monkeypatch):
    monkeypatch.setitem(k_centre_module.TOP, "cpu", top)
    monkeypatch.setattr(k_centre_module, "BLOCK", 3000)
    features = CLOUDS[name](torch.Generator().manual_seed(1))
    assert gcr.k_centre(features, 300, start=5).rows.tolist() == plain_order(features, 300, [5])
    kept = [8, 3, 150, 77, 2]
    assert gcr.k_centre(features, 200, keep=kept).rows.tolist() == plain_order(features, 200, kept)


def test_blocks_give_the_plain_walk_where_products_are_rounded(monkeypatch):
    monkeypatch.setitem(k_centre_module.TOP, "cpu", 32)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    features = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    assert gcr.k_centre(features, 200, start=0).rows.tolist() == plain_order(features, 200, [0])


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_the_default_type_of_torch_changes_nothing(kind, monkeypatch):
    monkeypatch.setitem(k_centre_module.TOP, "cpu", 16)
    features = np.random.default_rng(0).normal(size=(100, 9))
    expected = gcr.k_centre(features, 20).rows, gcr.k_centre(features, 20, projection=4).rows
    torch.set_default_dtype(kind)
    try:
        found = gcr.k_centre(features, 20).rows, gcr.k_centre(features, 20, projection=4).rows
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.array_equal(found, expected)


def test_all_rows_can_be_chosen(monkeypatch):
    monkeypatch.setitem(k_centre_module.TOP, "cpu", 16)
    chosen = gcr.k_centre(torch.rand(100, 3, generator=torch.Generator().manual_seed(0)), 100)
    assert sorted(chosen.rows.tolist()) == list(range(100))
    assert chosen.note == "every row is within 0 of a chosen one"


def test_k_centre_of_arrays_a_projection_and_progress(monkeypatch):
    monkeypatch.setitem(k_centre_module.TOP, "cpu", 16)
    features, seen = np.random.default_rng(0).normal(size=(200, 9)).astype(np.float32), []
    matrix = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    chosen = gcr.k_centre(features, 50, start=0, projection=matrix, progress=lambda *done: seen.append(done))
    assert isinstance(chosen.rows, np.ndarray)
    assert chosen.rows.tolist() == gcr.k_centre(torch.from_numpy(features @ matrix), 50, start=0).rows.tolist()
    assert (seen[0], seen[-1]) == ((1, 50), (50, 50))
    assert seen == sorted(set(seen))
    distances = np.linalg.norm((features @ matrix)[:, None] - (features @ matrix)[chosen.rows], axis=2)
    assert chosen.note == f"every row is within {distances.min(1).max():.6g} of a chosen one"
    assert (
        gcr.k_centre(features, 5, projection=3).rows.tolist() == gcr.k_centre(features, 5, projection=3).rows.tolist()
    )


def test_a_file_mapped_for_reading(tmp_path):
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(50, 3)))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert gcr.k_centre(mapped, 9).rows.tolist() == gcr.k_centre(np.array(mapped), 9).rows.tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.uint8])
def test_what_does_not_fit_in_memory(tmp_path, monkeypatch, kind):
    """64 pages of features as float32; a machine with one page less than rows and copies take."""
    mapped = np.lib.format.open_memmap(tmp_path / "features.npy", mode="w+", dtype=kind, shape=(65536, 1))
    pages = 64 + 16 * mapped.itemsize
    for values in (mapped, np.asarray(mapped), torch.from_numpy(mapped)):
        monkeypatch.setattr("os.sysconf", lambda name: pages - 1 if name == "SC_PHYS_PAGES" else 4096)
        with pytest.raises(BadInput, match=r"features must fit in memory .* give projection="):
            gcr.k_centre(values, 9)
        with pytest.raises(BadInput, match=r"gradients must fit in memory .* divide the rows by groups="):
            gcr.select_coreset(values, 9)
        monkeypatch.setattr("os.sysconf", lambda name: pages if name == "SC_PHYS_PAGES" else 4096)
        assert len(gcr.k_centre(values, 2).rows) == 2


def test_memory_is_asked_for_before_rows_are_read(monkeypatch):
    """A row that is not finite would be named otherwise; and what a projection makes counts too."""
    features = np.full((65536, 1), np.nan, np.float32)
    monkeypatch.setattr("os.sysconf", lambda name: 96 if name == "SC_PHYS_PAGES" else 4096)
    for choose in (gcr.k_centre, gcr.select_coreset):
        with pytest.raises(BadInput, match="must fit in memory"):
            choose(features, 9)
    with pytest.raises(BadInput, match=r"projected features must fit in memory .* fewer columns"):
        gcr.k_centre(features, 9, projection=1)


def test_features_too_long_or_too_short_for_distances():
    features = np.random.default_rng(0).normal(size=(50, 3))
    for scale in (1e150, 1e-150):
        with pytest.raises(BadInput, match=r"features must be between 1e-140 and 1e\+140, got .*; scale them"):
            gcr.k_centre(features * scale, 4)
    short, long = (gcr.k_centre(features * scale, 4).rows.tolist() for scale in (1e-130, 1e130))
    assert short == long == gcr.k_centre(features, 4).rows.tolist()


def test_a_projection_that_overflows():
    features = (np.random.default_rng(0).normal(size=(50, 8)) * 1e37).astype(np.float32)
    with pytest.raises(BadInput, match="projected features must be finite"):
        gcr.k_centre(features, 4, projection=np.full((8, 2), 100.0))


def test_what_does_not_fit_in_a_container(tmp_path, monkeypatch):
    """Control groups write a number of bytes, or "max"."""
    monkeypatch.setattr("gcr.select.checks.CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "of-an-older-kind"))
    features = np.zeros((65536, 1), np.float32)
    (tmp_path / "memory.max").write_text("400000\n")
    with pytest.raises(BadInput, match="features must fit in memory"):
        gcr.k_centre(features, 2)
    (tmp_path / "memory.max").write_text("max\n")
    assert len(gcr.k_centre(features, 2).rows) == 2


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, bool])
def test_whole_numbers_are_computed_as_float64(kind):
    features = np.random.default_rng(0).integers(0, 2 if kind is bool else 90, (50, 4)).astype(kind)
    for choose in (gcr.k_centre, gcr.select_coreset):
        plain, wide = choose(features, 9), choose(features.astype(np.float64), 9)
        assert plain.rows.tolist() == wide.rows.tolist()
        assert plain.weights.tolist() == wide.weights.tolist()
        assert plain.weights.dtype == wide.weights.dtype
    projected = gcr.k_centre(features, 9, projection=3)
    assert projected.rows.tolist() == gcr.k_centre(features.astype(np.float64), 9, projection=3).rows.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": [[1.0], [np.nan]]}, "features must be finite, got NaN or infinity in 1 of 2 rows: 1"),
        ({"features": [1.0, 2.0]}, "features must be a matrix"),
        ({"budget": 11}, "budget must be a whole number from 1 to 10, the number of rows, got 11"),
        ({"keep": [1, 2, 3]}, "budget must be at least the number of kept rows, 3, got 2"),
        ({"keep": [1, 1]}, "keep must name each row once"),
        ({"keep": [10]}, "keep must have row numbers from 0 to 9, got 10"),
        ({"keep": [0.5]}, "keep must be a list of row numbers"),
        ({"progress": True}, "progress must be a function of rows chosen and budget, got True"),
        ({"features": torch.eye(3).to_sparse()}, "features must be a dense array, got a tensor with torch.sparse_coo"),
        ({"start": -1}, "start must have row numbers from 0 to 9, got -1"),
        ({"start": 1.5}, "start must be the number of a row, got 1.5"),
        ({"projection": 1.5}, "projection must be a whole number of columns or a matrix, got 1.5"),
        ({"start": 1, "keep": [2]}, "keep and start exclude each other"),
        ({"projection": 0}, "projection must be a number of columns >= 1 or a matrix, got 0"),
        ({"projection": np.ones((4, 2))}, "projection must have a row for each of the 3 features, got shape (4, 2)"),
    ],
)
def test_bad_input_of_k_centre(arguments, message):
    with pytest.raises(BadInput) as caught:
        gcr.k_centre(**({"features": np.random.default_rng(0).random((10, 3)), "budget": 2} | arguments))
    assert message in str(caught.value)
