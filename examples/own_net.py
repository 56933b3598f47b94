"""A small ViT, AdamW and a tensor data set of one's own, trained with GCR."""

import torch
from torch import nn

import gcr


class ViT(nn.Module):
    def __init__(self, dim=32, classes=6):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, kernel_size=4, stride=4)  # 12 x 12 pixels -> 9 tokens
        self.position = nn.Parameter(0.02 * torch.randn(1, 9, dim))
        self.block = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, classes)

    def forward(self, images):
        return self.head(self.block(self.patches(images).flatten(2).mT + self.position).mean(1))


torch.manual_seed(0)
labels = torch.arange(900) % 6
images = 0.75 * torch.rand(6, 3, 12, 12)[labels] + 0.25 * torch.rand(900, 3, 12, 12)  # a pattern a class, and noise
scenario = gcr.from_arrays(train=(images[:600], labels[:600]), test=(images[600:], labels[600:]), tasks=3)
net, recipe = ViT(), gcr.GCR(memory=60)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
outcome = gcr.train(scenario, net, optimizer, recipe.method, recipe.memory, 0, training=gcr.Training(epochs=6))
print(f"class-IL accuracy {outcome.class_il['accuracy']:.1f}")
