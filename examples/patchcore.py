"""A PatchCore memory bank: features of patches of good images, thinned by k-centre; a patch far from it is a defect."""

import torch
from torch import nn

import gcr

torch.manual_seed(0)
SIZE = 32


def images(n):
    """Stripes of a random phase, with noise."""
    phase = 6.28 * torch.rand(n, 1, 1, 1)
    stripes = torch.sin(torch.arange(SIZE) / 2 + phase).expand(n, 3, SIZE, SIZE)
    return stripes + 0.1 * torch.randn(n, 3, SIZE, SIZE)


backbone = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1))


@torch.no_grad()
def patches(batch):  # [n, places, features]; in earnest the middle layers of a pretrained network
    return nn.functional.avg_pool2d(backbone(batch), 3, 1, 1).flatten(2).mT


good = patches(images(40)).flatten(0, 1)
chosen = gcr.k_centre(good, len(good) // 20, projection=32)
bank = good[chosen.rows]
print(f"{len(bank)} of {len(good)} patches; {chosen.note}")

test = images(60)
for image in test[30:]:  # a scratch
    row, column = torch.randint(4, SIZE - 12, (2,)).tolist()
    image[:, row : row + 2, column : column + 8] += 1.5
scores = torch.cdist(patches(test), bank.expand(60, -1, -1)).amin(2).amax(1)
better = (scores[30:, None] > scores[:30]).float().mean()
print(f"accuracy {100 * better:.1f}% (pairs of a scratched and a good image in which the scratched one scores higher)")
