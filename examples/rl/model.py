"""A tiny Qwen3 in plain torch, cut over tensor and pipeline ranks as Megatron cuts it.

A rank is one process with one `Stage`; its weights have the names, shapes and row order of Megatron's
own shards (docs/formats/shards.md), so that they can be published as they are. Ranks talk through
torch.distributed; with one rank in all, the same code is the whole model and talks to nobody.
"""

import dataclasses

import torch
import torch.distributed as dist
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 64
    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 128
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    # At the usual 0.02 a model this small says nearly the same for every prompt.
    std: float = 0.15

    @property
    def heads_per_group(self):
        return self.heads // self.kv_heads

    def hugging_face(self):
        """What config.json says of this model."""
        return {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16",
            "vocab_size": self.vocab, "hidden_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "intermediate_size": self.ffn, "hidden_act": "silu", "rms_norm_eps": self.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": 512, "attention_bias": False, "tie_word_embeddings": False,
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        }

    def megatron(self, layout):
        """What topology.json says of this model in this layout."""
        return {
            "tensor_model_parallel_size": layout.tp, "pipeline_model_parallel_size": layout.pp,
            "num_layers": self.layers, "hidden_size": self.hidden, "ffn_hidden_size": self.ffn,
            "num_attention_heads": self.heads, "num_query_groups": self.kv_heads,
            "kv_channels": self.head_dim, "padded_vocab_size": self.vocab,
            "share_embeddings_and_output_weights": False, "params_dtype": "torch.bfloat16",
        }


@dataclasses.dataclass(frozen=True)
class Layout:
    """Ranks are numbered as Megatron does: tensor ranks fastest, then stages."""
    tp: int = 1
    pp: int = 1

    @property
    def world(self):
        return self.tp * self.pp

    def tp_rank(self, rank):
        return rank % self.tp

    def stage(self, rank):
        return rank // self.tp

    def layers(self, config, rank):
        """The global numbers of a rank's layers; it calls them 0, 1, ... itself."""
        count = config.layers // self.pp
        return range(self.stage(rank) * count, (self.stage(rank) + 1) * count)


# Weights: made whole, cut into shards, joined again.

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"
QKV, QKV_NORM = "self_attention.linear_qkv.weight", "self_attention.linear_qkv.layer_norm_weight"
Q_NORM, K_NORM = "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"
PROJ = "self_attention.linear_proj.weight"
FC1, FC1_NORM, FC2 = "mlp.linear_fc1.weight", "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc2.weight"


def layer_name(layer, part):
    return f"decoder.layers.{layer}.{part}"


def layer_shapes(config):
    """{part: shape} of one whole layer. QKV rows are, per KV group: its queries, its key, its value.
    FC1 rows are all gates, then all ups (on a rank: its gates, then its ups)."""
    group = (config.heads_per_group + 2) * config.head_dim
    return {
        QKV_NORM: (config.hidden,),
        QKV: (config.kv_heads * group, config.hidden),
        Q_NORM: (config.head_dim,),
        K_NORM: (config.head_dim,),
        PROJ: (config.hidden, config.heads * config.head_dim),
        FC1_NORM: (config.hidden,),
        FC1: (2 * config.ffn, config.hidden),
        FC2: (config.hidden, config.ffn),
    }


def whole_weights(config, seed):
    """{name: float32} of the whole model, layers numbered globally."""
    shapes = {EMBEDDING: (config.vocab, config.hidden), OUTPUT: (config.vocab, config.hidden),
              FINAL_NORM: (config.hidden,)}
    for layer in range(config.layers):
        shapes |= {layer_name(layer, part): s for part, s in layer_shapes(config).items()}
    random = torch.Generator().manual_seed(seed)
    return {name: torch.ones(shape) if len(shape) == 1
            else config.std * torch.randn(shape, generator=random)
            for name, shape in shapes.items()}


def local_names(config, layout, rank):
    """{a rank's name of a weight: the whole model's}"""
    out = {}
    if layout.stage(rank) == 0:
        out[EMBEDDING] = EMBEDDING
    for local, layer in enumerate(layout.layers(config, rank)):
        out |= {layer_name(local, part): layer_name(layer, part) for part in layer_shapes(config)}
    if layout.stage(rank) == layout.pp - 1:
        out |= {FINAL_NORM: FINAL_NORM, OUTPUT: OUTPUT}
    return out


def cut_axis(name):
    """Along which axis tensor ranks share a weight; None: each has it whole."""
    if name in (EMBEDDING, OUTPUT) or name.endswith((QKV, FC1)):
        return 0
    return 1 if name.endswith((PROJ, FC2)) else None


def cut(weights, config, layout, rank):
    """A rank's part of whole weights, by its own names."""
    def part(weight, axis):
        return weight.chunk(layout.tp, axis)[layout.tp_rank(rank)]

    out = {}
    for local, name in local_names(config, layout, rank).items():
        weight, axis = weights[name], cut_axis(name)
        if name.endswith(FC1):
            weight = torch.cat([part(half, 0) for half in weight.chunk(2)])
        elif axis is not None:
            weight = part(weight, axis)
        out[local] = weight.clone(memory_format=torch.contiguous_format)
    return out


def join(shards, config, layout):
    """Whole weights from every rank's; the inverse of cut."""
    out = {}
    for stage in range(layout.pp):
        ranks = range(stage * layout.tp, (stage + 1) * layout.tp)
        for local, name in local_names(config, layout, ranks[0]).items():
            parts = [shards[rank][local] for rank in ranks]
            if name.endswith(FC1):
                gates, ups = zip(*(p.chunk(2) for p in parts))
                out[name] = torch.cat([*gates, *ups])
            elif (axis := cut_axis(name)) is not None:
                out[name] = torch.cat(parts, axis)
            else:
                out[name] = parts[0]
    return out


# The three places where tensor ranks meet. Between a _Spread and a _Sum each computes a part.

class _Spread(torch.autograd.Function):
    """The same values on every rank go into different parts: gradients are summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """Partial sums become the same values on every rank."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _Gather(torch.autograd.Function):
    """Columns of every rank become the same values on every rank. Each then computes the same
    loss, so that its own columns' gradient is already whole."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x, group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(dist.get_world_size(ctx.group), -1)[dist.get_rank(ctx.group)], None


class Stage:
    """One rank's part of the model: `weights` in float32, by Megatron's local names."""

    def __init__(self, config, layout, rank, weights, tp_group=None):
        """`tp_group`: the ranks of the same stage; needed if there are several."""
        self.config, self.layout, self.rank, self.tp_group = config, layout, rank, tp_group
        self.first = layout.stage(rank) == 0
        self.last = layout.stage(rank) == layout.pp - 1
        self.weights = {name: w.to(torch.float32, copy=True).requires_grad_()
                        for name, w in weights.items()}

    def forward(self, tokens):
        """Logits of tokens [batch, length] on the last stage, None on the others. A collective
        call: every rank makes it with the same tokens."""
        if self.first:
            x = self.embed(tokens)
        else:
            x = torch.empty(*tokens.shape, self.config.hidden)
            dist.recv(x, self.rank - self.layout.tp)
            x.requires_grad_(torch.is_grad_enabled())
        self.input = x
        turns = rope_turns(tokens.shape[1], self.config)
        for layer in range(len(self.layout.layers(self.config, self.rank))):
            x = x + self.attention(layer, x, turns)
            x = x + self.mlp(layer, x)
        self.output = x
        if not self.last:
            dist.send(x.detach(), self.rank + self.layout.tp)
            return None
        x = self.spread(rms_norm(x, self.weights[FINAL_NORM], self.config.norm_eps))
        return self.meet(_Gather, x @ self.weights[OUTPUT].T)

    def backward(self, loss):
        """Gradients of a loss that was computed from the last forward's logits; on stages that
        have none it is not looked at. A collective call."""
        if self.last:
            loss.backward()
        else:
            grad = torch.empty_like(self.output)
            dist.recv(grad, self.rank + self.layout.tp)
            self.output.backward(grad)
        if not self.first:
            dist.send(self.input.grad, self.rank - self.layout.tp)
        self.input = self.output = None

    def meet(self, function, x):
        return x if self.layout.tp == 1 else function.apply(x, self.tp_group)

    def spread(self, x):
        return self.meet(_Spread, x)

    def embed(self, tokens):
        table = self.weights[EMBEDDING]
        mine = tokens - self.layout.tp_rank(self.rank) * len(table)
        here = (mine >= 0) & (mine < len(table))
        rows = F.embedding(mine.where(here, torch.zeros_like(mine)), table)
        return self.meet(_Sum, rows * here.unsqueeze(-1))

    def attention(self, layer, x, turns):
        c, weight = self.config, lambda part: self.weights[layer_name(layer, part)]
        batch, length, _ = x.shape
        x = self.spread(rms_norm(x, weight(QKV_NORM), c.norm_eps))
        # [batch, length, groups, queries + key + value, head_dim] to heads before length
        qkv = (x @ weight(QKV).T).view(batch, length, -1, c.heads_per_group + 2, c.head_dim)
        q, k, v = qkv.split([c.heads_per_group, 1, 1], 3)
        q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))
        # Every rank norms its own heads with the same weight, so that its gradient is a sum too.
        q = turned(rms_norm(q, self.spread(weight(Q_NORM)), c.norm_eps), turns)
        k = turned(rms_norm(k, self.spread(weight(K_NORM)), c.norm_eps), turns)
        k, v = (t.repeat_interleave(c.heads_per_group, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).flatten(2)
        return self.meet(_Sum, out @ weight(PROJ).T)

    def mlp(self, layer, x):
        weight = lambda part: self.weights[layer_name(layer, part)]
        x = self.spread(rms_norm(x, weight(FC1_NORM), self.config.norm_eps))
        gate, up = (x @ weight(FC1).T).chunk(2, -1)
        return self.meet(_Sum, (F.silu(gate) * up) @ weight(FC2).T)


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rope_turns(length, config):
    """Cosine and sine of every position's angles, [length, head_dim] each."""
    half = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angles = torch.outer(torch.arange(length).float(), config.rope_theta ** -half)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def turned(x, turns):
    cos, sin = turns
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def token_logprobs(logits, tokens, start, temperature=1.0):
    """Log probability of tokens[:, start:], each given what stands before it."""
    logprobs = F.log_softmax(logits[:, start - 1:-1] / temperature, -1)
    return logprobs.gather(-1, tokens[:, start:].unsqueeze(-1)).squeeze(-1)
