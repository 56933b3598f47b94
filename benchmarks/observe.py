"""What ``learner.observe`` costs next to the same step written by hand.

    python benchmarks/observe.py                   CPU, one thread
    python benchmarks/observe.py --device cuda     captured steps, next to eager ones by hand

By hand means plain torch with equal passes: an ER-ACE step with a forward pass of 32 new and one of 32 remembered
images, AdamW, and a reservoir. The steps take turns, on networks of equal weights; the figure is the median ratio. On a
CPU the learner's AdamW is torch's fused one: "by hand" has it too, "default AdamW" is by hand without it. Writes
``observe-DEVICE`` (``benchmarks/measured.py``).
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import measured
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gcr
from gcr.models import build

BATCH, KEEP, CLASSES, LR = 32, 500, 10, 1e-3
WARM = 5  # steps before the clock starts
FEWEST, MOST_SECONDS = 15, 60  # a slow network takes fewer steps


Step = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norms[0](tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        mixed: Tensor = tokens + self.mlp(self.norms[1](tokens))
        return mixed


class Vit(nn.Module):
    """64 patches of 4 x 4, four blocks."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(4)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places)
        logits: Tensor = self.head(tokens.mean(1))
        return logits


def convnet() -> nn.Module:
    """Four convolutions."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, CLASSES))


def mlp() -> nn.Module:
    sizes = (nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    return nn.Sequential(nn.Flatten(), *sizes)


NETS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: build("resnet18", (3, 32, 32), CLASSES, 0),
    "convnet": convnet,
    "vit": Vit,
    "mlp": mlp,
}


class ByHand:
    """The step as one would write it: nothing is checked, and nothing can be resumed."""

    def __init__(self, net: nn.Module, device: torch.device, fused: bool | None = None) -> None:
        self.net = net.to(device).train()
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=LR, fused=fused)
        self.images = torch.zeros(KEEP, 3, 32, 32, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(KEEP, dtype=torch.int64, device=device)
        self.old = torch.zeros(CLASSES, dtype=torch.bool, device=device)
        self.seen = 0

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        device = self.labels.device
        images, labels = images.to(device), labels.to(device)
        present = torch.zeros_like(self.old).index_fill_(0, labels, True)
        self.old |= present
        logits = self.net(images.float() / 255)
        loss = F.cross_entropy(logits.masked_fill(~(present | ~self.old), -torch.inf), labels)
        if self.seen:
            rows = torch.randint(min(self.seen, KEEP), (BATCH,), device=device)
            logits = self.net(self.images[rows].float() / 255)
            loss = loss + F.cross_entropy(logits, self.labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        numbers = torch.arange(self.seen, self.seen + len(labels))
        slots = torch.where(numbers < KEEP, numbers, (torch.rand(len(labels)) * (numbers + 1)).long())
        kept = slots < KEEP
        place, taken = slots[kept].to(device), kept.to(device)
        self.images[place], self.labels[place] = images[taken], labels[taken]
        self.seen += len(labels)
        return loss.detach()


def measure(name: str, steps: int, device: torch.device, augment: str | None) -> dict[str, Any]:
    torch.manual_seed(0)
    net = NETS[name]()
    learner = gcr.Learner(deepcopy(net), KEEP, augment=augment, precision="fp32", device=device)
    turns: dict[str, Step] = {"observe": learner.observe}
    if device.type == "cpu":
        turns |= {"by_hand": ByHand(deepcopy(net), device, fused=True), "default_adamw": ByHand(net, device)}
    else:
        turns["by_hand"] = ByHand(net, device)
    batches = [torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8) for _ in range(8)]
    labels = torch.arange(BATCH) % CLASSES
    spent: dict[str, list[float]] = {turn: [] for turn in turns}
    clock = time.perf_counter if device.type == "cuda" else time.process_time  # other programs do not count
    until = time.perf_counter() + MOST_SECONDS
    for step in range(WARM + steps):
        if step > WARM + FEWEST and time.perf_counter() > until:
            break
        for turn, observe in list(turns.items())[:: 1 if step % 2 else -1]:
            began = clock()
            observe(batches[step % 8], labels)
            if device.type == "cuda":
                torch.cuda.synchronize()
            spent[turn].append(1000 * (clock() - began))
    medians = {f"{turn}_ms": statistics.median(of[WARM:]) for turn, of in spent.items()}
    pairs = zip(spent["observe"][WARM:], spent["by_hand"][WARM:], strict=True)
    more = statistics.median(ours / by_hand for ours, by_hand in pairs) - 1
    row = {"net": name, "augment": augment, "steps": len(spent["observe"]) - WARM, **medians, "more": more}
    shown = ", ".join(f"{turn} {value:.2f}" for turn, value in medians.items())
    print(f"{name:10} {shown}: {100 * more:+.1f} %", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(chosen.device)
    rows = [measure(name, chosen.steps, device, None) for name in chosen.nets.split(",")]
    about = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {platform.machine()}, 1 thread",
        "versions": {"gcr": gcr.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "batch": BATCH,
        "memory": KEEP,
        "rows": rows,
    }
    measured.write(f"observe-{device.type}", about)
    print(f"written: observe-{device.type}, in {measured.FILE}")


if __name__ == "__main__":
    main()
