"""The readers of gcr with sound files for each, and damage to them. ``fuzz.py`` and ``test_security.py`` try them."""

import gzip
import io
import json
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_data as made
import made_learners
import made_runs
import named
import numpy as np
import pyarrow as pa
import torch
from conftest import make_scenario
from fuzz_values import write_odd
from PIL import Image
from pyarrow import parquet as pq
from safetensors.torch import save

from gcr.analysis.load import runs_at
from gcr.analysis.verify import verify
from gcr.classifier import page, saved
from gcr.classifier.examples import first_form, read_examples
from gcr.classifier.predict import predict
from gcr.classifier.sources import find_labelled
from gcr.classifier.update import New, UpdateSettings, update
from gcr.data.archive import open_tree
from gcr.data.check import check_set
from gcr.data.importers import FORMATS
from gcr.data.importing import import_set
from gcr.data.source import Wanted, check_source
from gcr.experiments.experiment import compose
from gcr.files import parse_json, parse_tensors
from gcr.learner import Learner
from gcr.learner.state_folder import StateFolder
from gcr.memory import Policy
from gcr.methods import Gcr
from gcr.paper.grid_search import read_grid
from gcr.report.build import render
from gcr.report.unfinished import unfinished_runs
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job, run_job
from gcr.runs.load import load_run
from gcr.runs.model_file import SavedModel, read_model
from gcr.runs.packed import packed_bytes
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training import Checkpoints, Diverged, How, Run

Files = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    files: Callable[[], Files]  # sound ones
    read: Callable[[Path], Any]  # all that is in the folder they were written to
    damaged: Callable[[str], bool] = lambda name: True  # which of them are changed
    pack: Callable[[str, bytes], bytes] = lambda name, content: content  # after they were changed
    odd: bool = False  # whether values are changed, and digests made again, rather than bytes


def tree_at(path: Path) -> None:
    tree = open_tree([path])
    for name in tree.names:
        tree.read(name)


def data_set(wanted: Wanted) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        tree = open_tree([folder])
        for known in FORMATS:
            if (known.own or wanted.known) and known.finds(tree, wanted) is not None:
                source = known.read(tree, wanted)
                check_source(source, wanted)
                for part in (source.train, source.test):
                    assert sum(map(len, part.blocks())) == len(part.labels)
                return
        raise BadInput("nothing found")

    return read


def examples_in(folder: Path) -> None:
    source = find_labelled(next(iter(folder.iterdir())))
    read_examples(source, first_form(source, None, quiet), True, quiet)


def quiet(*_: object) -> None:
    pass


def run_folder(folder: Path) -> None:
    runs = runs_at(folder)
    render(runs.groups, unreadable=runs.unreadable, unfinished=list(unfinished_runs(folder)), notes=runs.caveats)


def runs_files() -> Files:
    with scratch() as folder:
        more = {"memory": True, "selections": [made_runs.SELECTION]}
        made_runs.put_run(folder, made_runs.experiment_of("gcr"), made_runs.square(50.0), **more)
        made_runs.put_unfinished(folder, made_runs.experiment_of("er"))
        return in_files(folder)


def packed_files() -> Files:
    with scratch() as folder:
        run = made_runs.put_run(folder, made_runs.experiment_of("gcr"), made_runs.square(50.0))
        values = {"experiment": run.experiment_values(), "result": run.result()}
        return {"x.jsonl.gz": packed_bytes([("a/seed-0", values), ("b/seed-0", values)], {"a/seed-1": "NaN"})}


def old_packed_files() -> Files:
    return without_digests({name: gzip.decompress(content) for name, content in packed_files().items()})


def without_digests(files: Files) -> Files:
    """As an older gcr wrote them, so that more than their digest is looked at."""
    plain = {}
    for name, content in files.items():
        if name.endswith(".safetensors"):
            about, tensors = parse_tensors(content, name)
            plain[name] = save(tensors, {"gcr": json.dumps(about)})
        else:
            parts = content.splitlines(keepends=True) if ".jsonl" in name else [content]
            values = [_without_links(parse_json(part, name)) for part in parts]
            plain[name] = b"".join(json.dumps(each).encode() + b"\n" for each in values)
    return plain


def _without_links(values: dict[str, Any]) -> dict[str, Any]:
    """A result, a line of a packed file or its header, without what it says of others."""
    if isinstance(values.get("result"), dict):
        return values | {"result": _without_links(values["result"])}
    links = {"files", "sha256", "runs"} | ({"experiment"} if "class_il" in values else set())
    return {key: value for key, value in values.items() if key not in links}


def gzipped(name: str, content: bytes) -> bytes:
    return gzip.compress(content, 1) if name.endswith((".gz", ".tgz")) else content


def archive_files(kind: str) -> Files:
    with scratch() as folder:
        file = folder / f"x.{kind}"
        contents = {"a/x.txt": b"text" * 50, "a/ö.bin": bytes(3000), "b/": b"", "b/long" + "g" * 200: b"1"}
        if kind == "zip":
            made.write_zip(file, contents)
        else:
            made.write_tar(file, contents, "w")
        return {file.name: file.read_bytes()}


def picture_files() -> Files:
    rng = np.random.default_rng(0)
    files = {}
    for part in ("train", "test"):
        for number, format in enumerate(("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM")):
            for mode in ("RGB", "L", "RGBA", "P", "I;16"):
                if (format, mode) in {("JPEG", "RGBA"), ("JPEG", "P"), ("PPM", "P"), ("PPM", "RGBA")} or (
                    mode == "I;16" and format not in ("PNG", "TIFF")
                ):
                    continue
                kind = "RGB" if mode == "I;16" else mode
                values = Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).convert(kind)
                if mode == "I;16":
                    values = Image.fromarray(rng.integers(0, 65536, (12, 10), dtype=np.uint16))
                file = io.BytesIO()
                exif = Image.Exif()
                exif[0x0112] = 6
                values.save(file, format, **({"exif": exif} if format in ("PNG", "JPEG", "WEBP", "TIFF") else {}))
                files[f"{part}/c{number % 2}/{mode.strip(';')}.{format.lower()}"] = file.getvalue()
    return files


def parquet_files() -> Files:
    files = {}
    about = json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}})
    for part in ("train", "test"):
        pictures = [{"bytes": made.png(image), "path": None} for image in made.examples(4, 2, (3, 6, 6))[0]]
        table = pa.table({"image": pictures, "label": [0, 1] * 4}).replace_schema_metadata({"huggingface": about})
        for number, compression in enumerate(("snappy", "zstd", "none")):
            file = io.BytesIO()
            pq.write_table(table, file, row_group_size=3, compression=compression)
            files[f"{part}-{number}.parquet"] = file.getvalue()
    return files


def table_files() -> Files:
    file = io.BytesIO()
    columns = {"label": ["a", "b"] * 20, "x": list(range(40)), "y": [0.5] * 40, "z": [True, False] * 20}
    pq.write_table(pa.table(columns), file, row_group_size=9)
    return {"rows.parquet": file.getvalue()}


def csv_files() -> Files:
    lines = ["label,x,y", *(f'{"ab"[n % 2]},{n},"{n}.5"' for n in range(20))]
    return {"rows.csv": "\r\n".join(lines).encode()}


def state_files() -> Files:
    with scratch() as folder:
        StateFolder(folder / "state").write({"classes": ["a", "b"]}, {"weight": torch.arange(12.0)})
        return in_files(folder)


def model_files() -> Files:
    about = {"model": "mlp", "scenario": "made", "class_names": ["a", "b"], "image_shape": [1, 2, 2]}
    model = SavedModel(about | {"pixels": "uint8", "views": {}}, {"weight": torch.arange(12.0)}, {})
    return without_digests({"model.safetensors": model.to_bytes()})


def cache_files() -> Files:
    with scratch() as folder, data_root(folder / "cache"):
        made.write_folder(folder / "given", made.pictures(classes=("a", "b"), n=2))
        import_set("birds", [folder / "given"])
        return {str(f.relative_to(folder)): f.read_bytes() for f in (folder / "cache").rglob("*") if f.is_file()}


def cache_at(folder: Path) -> None:
    with data_root(folder / "cache"):
        check_set("birds")


@contextmanager
def data_root(folder: Path):
    before = os.environ.get("GCR_DATA")
    os.environ["GCR_DATA"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("GCR_DATA")
        if before is not None:
            os.environ["GCR_DATA"] = before


def in_files(folder: Path) -> Files:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def trained_files() -> Files:
    """A run whose method predicts with tensors of its own."""
    experiment = compose("seq-digits", "icarl", overrides={"epochs": 1, "batch": 64, "model": "mlp", "buffer": 10})
    with scratch() as folder:
        events: list[Any] = []
        run_job(0, Job(experiment, RunFolder(folder / "runs/a/seed-0")), Execution("cpu"), events.append)
        assert events[-1].accuracy is not None, events[-1]
        return in_files(folder)


def trained_run(folder: Path) -> None:
    """Loaded, asked for predictions and memory, and checked by ``gcr verify``."""
    list(verify(folder))
    run = load_run(folder / "runs/a/seed-0")
    images = torch.zeros((2, *run.image_shape), dtype=torch.uint8 if run.pixels == "uint8" else torch.float32)
    assert run.scores(images).shape == (2, len(run.class_names))
    run.features(images)
    if run.memory is not None and len(run.memory):
        assert len(run.memory.images) == len(run.memory.labels)
        run.memory.sample(3)


def resumed_run(folder: Path) -> Run:
    scenario, policy = make_scenario(), Policy(buffer=12, selector=GradApprox())
    training = named.Training(epochs=2, batch=8)
    net, _ = named.objects(scenario, "mlp", training, 0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    checkpoints = Checkpoints(folder, {"seed": 0})
    return Run(scenario, net, optimizer, Gcr(), policy, 0, training, How(), checkpoints=checkpoints)


def checkpoint_files() -> Files:
    with scratch() as folder:
        run = resumed_run(folder)
        for _ in run.advance():
            if run.state.steps == 10:  # an epoch is 3 steps, a task 2 epochs
                break
        return in_files(folder)


def continued(folder: Path) -> None:
    """From the checkpoint to the end. A remark is a refusal."""
    run = resumed_run(folder)
    if run.remarks:
        assert len(run.remarks) == 1 or "starting from the beginning" in run.remarks[-1]
        raise BadInput(run.remarks[0])
    for _ in run.advance():
        pass
    run.outcome()


def learner_files() -> Files:
    learner = Learner(made_learners.mlp(), 12, optimizer=made_learners.quick)
    learner.fit(*made_learners.blobs([made_learners.A, made_learners.B], n=8), epochs=1)
    with scratch() as folder:
        learner.save(folder / "state")
        return in_files(folder)


def loaded_learner(folder: Path) -> None:
    """Predicts, and learns one more class."""
    learner = Learner.load(folder / "state", made_learners.mlp())
    x, y = made_learners.blobs([made_learners.B, made_learners.C], n=4)
    learner.predict(x)
    learner.observe(x, y)
    learner.end_task()


def classifier_files() -> Files:
    with scratch() as folder:
        rows = [f"{'ab'[n % 2]},{n % 2}.{n},{n}" for n in range(24)]
        (folder / "rows.csv").write_text("\n".join(["label,x,y", *rows]) + "\n")
        settings = UpdateSettings(memory=20, epochs=1, limit=100, holdout=0.2, seed=0)
        state = StateFolder(folder / "state")
        with state.lock():
            update(state, New(folder / "rows.csv"), settings, "cpu", quiet, quiet)
        return in_files(folder)


def predicted(folder: Path) -> None:
    """``gcr predict`` and ``gcr inspect``."""
    classifier = saved.load(StateFolder(folder / "state"))
    predict(classifier, [folder / "rows.csv"], say=quiet)
    page.render(classifier, 1)


LONGEST = 2000  # characters of a message; paths may be long
CIFAR = made.examples(1, 10, (3, 32, 32)), made.examples(1, 10, (3, 32, 32), seed=1)
DIGITS = made.examples(3, 10, (1, 28, 28)), made.examples(1, 10, (1, 28, 28), seed=1)
LIKE_TINY = made.wanted("tinyimagenet", 4, 2, n_classes=3, class_ids=made.TINY_IDS)
READERS = {
    "zip": Reader(lambda: archive_files("zip"), lambda folder: tree_at(folder / "x.zip")),
    "tar": Reader(lambda: archive_files("tar"), lambda folder: tree_at(folder / "x.tar")),
    "tgz": Reader(lambda: archive_files("tgz"), lambda folder: tree_at(folder / "x.tgz"), pack=gzipped),
    "cifar-binary": Reader(lambda: made.cifar10_binary(*CIFAR), data_set(made.wanted("cifar10", 1, 1))),
    "cifar-python": Reader(lambda: made.cifar10_python(*CIFAR), data_set(made.wanted("cifar10", 1, 1))),
    "sheets": Reader(lambda: made.sheets(*CIFAR), data_set(made.wanted("cifar10", 1, 1))),
    "idx": Reader(lambda: made.mnist(*DIGITS, packed=False), data_set(made.wanted("mnist", 3, 1))),
    "idx-gz": Reader(
        lambda: {f"{name}.gz": content for name, content in made.mnist(*DIGITS, packed=False).items()},
        data_set(made.wanted("mnist", 3, 1)),
        pack=gzipped,
    ),
    "tiny": Reader(made.tiny_imagenet, data_set(LIKE_TINY), lambda name: name.endswith(".txt")),
    "pictures": Reader(picture_files, data_set(Wanted("birds", None, 8))),
    "parquet": Reader(parquet_files, data_set(Wanted("birds", None))),
    "table": Reader(table_files, examples_in),
    "csv": Reader(csv_files, examples_in),
    "runs": Reader(lambda: without_digests(runs_files()), run_folder),
    "packed": Reader(old_packed_files, run_folder, pack=gzipped),
    "packed-gz": Reader(packed_files, run_folder),
    "state": Reader(state_files, lambda folder: StateFolder(folder / "state").read()),
    "model": Reader(model_files, lambda folder: read_model(folder / "model.safetensors")),
    "cache": Reader(cache_files, cache_at),
    "cache-values": Reader(cache_files, cache_at, lambda name: name.endswith("about.json"), odd=True),
    "runs-values": Reader(runs_files, run_folder, odd=True),
    "packed-values": Reader(packed_files, run_folder, odd=True),
    "run-values": Reader(trained_files, trained_run, odd=True),
    "checkpoint-values": Reader(checkpoint_files, continued, odd=True),
    "learner-values": Reader(learner_files, loaded_learner, odd=True),
    "predict-values": Reader(classifier_files, predicted, lambda name: name.startswith("state"), odd=True),
    "grid": Reader(lambda: {"grid.toml": b'lr = [0.1, 0.3]\n"x" = ["a"]\n'}, lambda f: read_grid(f / "grid.toml")),
}
SNIPPETS = (
    b"9" * 30,
    b"1e999",
    b"NaN",
    b"null",
    b"[" * 5000,
    b"{}",
    b'"',
    b"-1",
    b"\0",
    b"\xff\xfe",
    b"../",
    b"\\u0000",
)
NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A few changes: bits, bytes, numbers of 1 to 8 bytes, pieces cut, doubled, moved or put in, the end cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(data)) if data else 0
        end = at + min(len(data) - at, 1 << rng.randrange(10))
        match rng.randrange(8):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.randrange(256)
            case 2:
                size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
                data[at : at + size] = (rng.choice(NUMBERS) % 256**size).to_bytes(size, order)
            case 3:
                del data[at:end]
            case 4:
                data[at:at] = data[at:end]
            case 5:
                to = rng.randrange(len(data) + 1)
                data[to : to + end - at] = data[at:end]
            case 6:
                data[at : at + rng.randrange(3)] = rng.choice(SNIPPETS)
            case _ if rng.randrange(4) == 0:
                del data[at:]
    return bytes(data)


def attack(reader: Reader, files: Files, folder: Path, rng: random.Random) -> str:
    """Write one case and read it: what was answered, in a word. Any error but BadInput is a finding."""
    names = sorted(name for name in files if reader.damaged(name))
    if reader.odd:
        write_odd(files, names, folder, rng)
    else:
        _write_damaged(reader, files, names, folder, rng)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(folder)
    except (BadInput, Diverged) as error:
        text = str(error)
        assert len(text) < LONGEST, f"a message of {len(text)} characters: {text[:300]}"
        assert text.isprintable() or not reader.odd, f"a message with control characters: {text[:300]!r}"
        return "refused"
    return "read"


def _write_damaged(reader: Reader, files: Files, names: list[str], folder: Path, rng: random.Random) -> None:
    damaged = set(rng.sample(names, min(len(names), rng.choice((1, 1, 2)))))
    for name, content in files.items():
        changed = mutated(content, rng) if name in damaged else content
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(reader.pack(name, changed))


@contextmanager
def scratch():
    folder = Path(tempfile.mkdtemp(prefix="gcr-fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
