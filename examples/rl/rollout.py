"""Who writes the responses. An engine takes TorchRollout's place by having its two methods."""

from typing import Protocol

import torch

import model
import shards


class Rollout(Protocol):
    def update(self, step):
        """Every rank has published `step`: what is generated from now on comes from its weights."""

    def generate(self, prompts, max_tokens, temperature):
        """One response of exactly `max_tokens` tokens for each prompt; prompts and responses are
        lists of token ids. At temperature 0 the likeliest token is taken."""


class TorchRollout:
    """The same model in this process, from the shards that the ranks wrote."""

    def __init__(self, config, layout, directory, seed):
        self.config, self.layout, self.directory = config, layout, directory
        self.random = torch.Generator().manual_seed(seed)

    def update(self, step):
        ranks = shards.read_shards(shards.step_directory(self.directory, step), self.layout)
        whole = model.join(ranks, self.config, self.layout)
        self.model = model.Stage(self.config, model.Layout(), 0, whole)

    @torch.no_grad()
    def generate(self, prompts, max_tokens, temperature):
        tokens = torch.tensor(prompts)
        for _ in range(max_tokens):  # no cache: a few dozen tokens are soon read again
            logits = self.model.forward(tokens)[:, -1]
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                chances = torch.softmax(logits / temperature, -1)
                new = torch.multinomial(chances, 1, generator=self.random)
            tokens = torch.cat([tokens, new], 1)
        return tokens[:, len(prompts[0]):].tolist()
