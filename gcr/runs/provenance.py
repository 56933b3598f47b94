"""Which source a result was computed with, and which weights it began with.

A source has the name that git gives to the package's folder. It is found again, wherever the package was installed, by
``git rev-parse COMMIT:gcr`` of the commit that it is from.
"""

from __future__ import annotations

import hashlib
import stat
from functools import cache
from pathlib import Path

import torch
from torch import nn

import gcr


@cache  # as it is when first asked for
def source() -> str:
    return git_tree(Path(gcr.__file__).parent).hex()


def git_tree(folder: Path) -> bytes:
    """As git hashes a folder: modes, names and hashes of what is in it. Caches and hidden files do not count."""
    entries = []
    for path in folder.iterdir():
        if path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir():
            if (inside := git_tree(path)) != NOTHING:
                entries.append((f"{path.name}/", b"40000", path, inside))
        else:
            mode = b"100755" if path.stat().st_mode & stat.S_IXUSR else b"100644"
            entries.append((path.name, mode, path, _hash(b"blob", path.read_bytes())))
    entries.sort(key=lambda entry: entry[0])
    return _hash(b"tree", b"".join(b"%s %s\0%s" % (m, p.name.encode(), content) for _, m, p, content in entries))


def weights_digest(net: nn.Module) -> str:
    """Of all parameters and buffers, wherever they lie: the beginning of a SHA-256."""
    digest = hashlib.sha256()
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _hash(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0" % (kind, len(content)) + content, usedforsecurity=False).digest()


NOTHING = _hash(b"tree", b"")  # git knows no empty folders
