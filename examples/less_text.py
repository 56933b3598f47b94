import torch

import gcr

# Choose training texts for a task by their gradients (the LESS recipe): projected gradients, target=, train.
WORDS, LENGTH, LATER = 12, 10, torch.ones(10, 10).triu(1).bool()  # no word sees later ones
torch.manual_seed(0)


class Transformer(torch.nn.TransformerEncoderLayer):  # one block
    def __init__(self, width=32):
        super().__init__(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.embed, self.place = torch.nn.Embedding(WORDS, width), torch.nn.Embedding(LENGTH, width)

    def forward(self, tokens):
        return super().forward(self.embed(tokens) + self.place.weight, LATER) @ self.embed.weight.T


def loss(logits, following):  # one value per text
    return torch.nn.functional.cross_entropy(logits.mT, following, reduction="none").mean(1)


def train(net, texts, steps):
    adam = torch.optim.Adam(net.parameters(), 3e-3)
    for batch in texts.repeat(steps, 1)[: 32 * steps].split(32):
        adam.zero_grad()
        loss(net(batch[:, :-1]), batch[:, 1:]).mean().backward()
        adam.step()


kinds = torch.randint(4, (600,))  # each kind of text counts by a step of its own; the task is kind 1
texts = (torch.randint(WORDS, (600, 1)) + (2 * kinds[:, None] + 1) * torch.arange(LENGTH + 1)) % WORDS
pool, known, test = texts[:400], texts[400:500][kinds[400:500] == 1], texts[500:][kinds[500:] == 1]
train(net := Transformer(), pool, steps=20)
own, goal = (gcr.collect(net, [(x[:, :-1], x[:, 1:])], loss, gradients="projected", width=1024) for x in (pool, known))
chosen = gcr.select_coreset(own.gradients, 40, target=goal.gradients, weights="unit").rows
train(net, pool[chosen], steps=60)
print(f"{100 * (kinds[chosen] == 1).float().mean():.0f}% of the chosen texts are of the task, a quarter of the pool is")
print(f"next-word accuracy {100 * (net(test[:, :-1]).argmax(2) == test[:, 1:])[:, 1:].float().mean():.1f}")
