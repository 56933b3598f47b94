import torch

import gcr


class ViT(torch.nn.Module):  # a small ViT, AdamW and a tensor data set of one's own, trained with GCR
    def __init__(self, dim=32, classes=6):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, dim, kernel_size=4, stride=4)  # 12 x 12 pixels -> 9 tokens
        self.position = torch.nn.Parameter(0.02 * torch.randn(1, 9, dim))
        self.block = torch.nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.head = torch.nn.Linear(dim, classes)

    def forward(self, images):
        return self.head(self.block(self.patches(images).flatten(2).mT + self.position).mean(1))


labels = torch.arange(900) % 6  # a pattern a class, and noise; a fifth of each class is held out for testing
images = 0.75 * torch.rand(6, 3, 12, 12)[labels] + 0.25 * torch.rand(900, 3, 12, 12)
scenario = gcr.from_arrays(train=(images, labels), tasks=3)
net, recipe, training = ViT(), gcr.GCR(memory=60), gcr.Training(epochs=6)
adamw = torch.optim.AdamW(net.parameters(), lr=3e-3)
outcome = gcr.train(scenario, net, adamw, recipe.method, recipe.memory, seed=0, training=training)
print(f"class-IL accuracy {outcome.class_il['accuracy']:.1f}")
