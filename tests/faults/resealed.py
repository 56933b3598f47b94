"""Odd contents under a right digest, as of a program that writes these files itself: refused in a line, or harmless."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import torch
from children import Child
from damage import HUNG_SECONDS, Kind, copied, cost, is_hung, prepared
from digests import check_whole, link_state, sealed
from tally import Tally

DEEP: Any = 1
for _ in range(55):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 10**400, 1e308, 0.5, float("nan"), float("inf"), "", "x", "\0", "\ud800", "\x1b[2J",
    "[red]", "../../../etc/passwd", "<script>", "9" * 10_000, [], {}, [[]], [None], {"": None}, [1, [2]], DEEP,
)  # fmt: skip
DTYPES = (torch.uint8, torch.int64, torch.float16, torch.float64, torch.bool)


def changed(values: Any, draw: random.Random) -> None:
    """One value anywhere in ``values`` is another, or gone, or there is one more."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            if key != "digest":
                places.append((value, key))
            if isinstance(inside, dict | list):
                walk(inside)

    walk(values)
    container, key = draw.choice(places)
    match draw.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.append(draw.choice(ODD))
        case _:
            container[key] = draw.choice(ODD)


def odd_json(content: bytes, draw: random.Random, indent: int | None = 2) -> bytes:
    values = json.loads(content)
    changed(values, draw)
    return (json.dumps(values, indent=indent, separators=(",", ": " if indent else ":")) + "\n").encode()


def odd_tensors(content: bytes, draw: random.Random) -> bytes:
    from safetensors.torch import load, save

    end = 8 + int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8:end]).get("__metadata__", {}).get("gcr", "{}"))
    tensors = load(content)
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    match draw.randrange(8):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor[None]
        case 2:
            tensors[name] = tensor.flatten()[: draw.randrange(3)].clone()
        case 3:
            tensors[name] = tensor.to(draw.choice(DTYPES))
        case 4:
            tensors[name] = torch.full_like(tensor, draw.choice((float("nan"), -1, 1e30)) if tensor.is_floating_point()
                                            else draw.choice((0, 1, 100)))  # fmt: skip
        case 5:
            tensors[draw.choice(("", "x", "../x", name + "x"))] = tensor.clone()
        case _ if about.keys() - {"digest"}:
            changed(about, draw)
        case _:
            tensors[name] = tensor.new_zeros(())
    return save(tensors, {"gcr": json.dumps(about)} if about else None)


def odd(name: str, content: bytes, draw: random.Random) -> bytes:
    """Other contents, with their digest."""
    if name.endswith(".jsonl.gz"):
        return gzip.compress(odd(name.removesuffix(".gz"), gzip.decompress(content), draw), mtime=0)
    if name.endswith(".safetensors"):
        return sealed(name, odd_tensors(content, draw))
    if name.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
        number = draw.randrange(len(lines))
        lines[number] = odd_json(lines[number], draw, indent=None)
        content = sealed(name, b"".join(lines))
        first, _, rest = content.partition(b"\n")
        all_lines = rb'(?<="sha256":")[0-9a-f]{64}'  # in the first line of packed results
        return sealed(name, re.sub(all_lines, hashlib.sha256(rest).hexdigest().encode(), first) + b"\n" + rest)
    return sealed(name, odd_json(content, draw))


def reseal_kind(kind: Kind, folder: Path, number: int, seed: int) -> Tally:
    """``number`` files, one at a time."""
    base, work = prepared(kind, folder)
    tally = Tally()
    for i in range(number):
        draw = random.Random(f"{seed} resealed {kind.name} {i}")
        copied(base, work)
        files = [path for path in work.glob(kind.files) if path.is_file() and path.suffix != ".npy"]
        file = draw.choice(sorted(files))
        content = odd(file.name, file.read_bytes(), draw)
        check_whole(file.name, content)
        file.write_bytes(content)
        if (file.parent / "learner.json").exists():
            link_state(file.parent)
        ended = Child(kind.use, work).wait(HUNG_SECONDS)
        found = []
        if is_hung(ended):
            found.append("hangs")
        elif ended.traceback or ended.code not in (0, 1, 2):
            found.append("tracebacks")
        elif ended.code and not ended.err.strip():
            found.append("silent")
        last = (ended.err.strip().splitlines() or [""])[-1]
        tally.count(f"{kind.name}, {file.name}, number {i}: {last[:200] if found else ''}", *found)
        tally.add(cost(ended))
        tally.add(Tally(measured={"refused" if ended.code else "harmless": 1}))
    return tally
