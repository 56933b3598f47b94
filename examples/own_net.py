"""A small ViT, AdamW and a tensor data set of one's own, trained with GCR."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import gcr


class ViT(nn.Module):
    def __init__(self, dim=48, depth=2, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, kernel_size=2, stride=2)  # 8x8 image -> 16 tokens
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, images):
        return self.head(self.blocks(self.patches(images).flatten(2).mT + self.position).mean(1))


images, labels = torch.tensor(load_digits().images / 16, dtype=torch.float32)[:, None], load_digits().target
scenario = gcr.from_arrays(train=(images[:1400], labels[:1400]), test=(images[1400:], labels[1400:]), tasks=5)
net, recipe = ViT(), gcr.GCR(memory=200)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
outcome = gcr.train(scenario, net, optimizer, recipe.method, recipe.memory, 0, training=gcr.Training(epochs=10))
print(f"class-IL accuracy {outcome.class_il['accuracy']:.1f}")
