"""Faults inside of a worker, by /collective_rpc (`--worker-extension-cls planted.Extension`)."""

import torch


class Extension:
    def flip(self, name, at):
        """One bit of a live parameter."""
        self.model_runner.get_model().get_parameter(name).data.view(torch.int16).view(-1)[at] ^= 1
