"""Float images as NumPy arrays, channels last, with string labels."""

import numpy as np
import torch
from sklearn.datasets import load_digits

import gcr

digits = load_digits()
names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
images = (digits.images[..., None] / 16).astype(np.float32)  # [n, height, width, channels] in [0, 1]
labels = names[digits.target]

scenario = gcr.from_arrays(train=(images[:1400], labels[:1400]), test=(images[1400:], labels[1400:]), tasks=5)
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.BatchNorm2d(16),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(4),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 10),
)
recipe = gcr.GCR(memory=100)
optimizer = gcr.Sgd(net.parameters(), lr=0.1)
training = gcr.Training(epochs=5)
outcome = gcr.train(scenario, net, optimizer, recipe.method, recipe.memory, seed=0, training=training)

print(f"class-IL accuracy {outcome.class_il['accuracy']:.1f}, forgetting {outcome.class_il['forgetting']:.1f}")
print(f"memory: {len(outcome.state.memory)} examples, {outcome.state.memory.nbytes:,} bytes")
