"""Layers of published models by name: what a kernel meets in service."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.scenario import Activation, Biases, Shape, Situ, Swiglu, SwigluOai


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The routed experts of one layer of a model.

    hidden, intermediate, experts, top_k: H, I, E and K of the whole layer.
    small: (H, I) of the shrunken form: the same ratio and the same E, K and EP structure, small enough for a CPU.
    ep_sizes: numbers of ranks that it is served on, ascending, each with experts that fit one rank.
    activation, biases, routed_scaling_factor: as in a Scenario. source: where the figures come from.
    """

    name: str
    hidden: int
    intermediate: int
    small: tuple[int, int]
    experts: int
    top_k: int
    ep_sizes: tuple[int, ...]
    activation: Activation
    biases: Biases = "none"
    routed_scaling_factor: float = 1.0
    source: str

    def shape(self, tokens: int = 1) -> Shape:
        """The whole layer's shape."""
        return Shape(
            tokens=tokens,
            hidden=self.hidden,
            intermediate=self.intermediate,
            experts=self.experts,
            top_k=self.top_k,
        )

    def small_shape(self, tokens: int = 1) -> Shape:
        """The shrunken form's shape."""
        hidden, intermediate = self.small
        return Shape(tokens=tokens, hidden=hidden, intermediate=intermediate, experts=self.experts, top_k=self.top_k)


_ALL = (
    Model(
        name="gpt-oss-20b",
        hidden=2880,
        intermediate=2880,
        small=(192, 192),  # a multiple of 64 and not of 128, as 2880 is
        experts=32,
        top_k=4,
        ep_sizes=(1, 2, 4, 8),
        activation=SwigluOai(alpha=1.702, beta=1.0, limit=7.0),
        biases="per_expert",
        source="config.json of openai/gpt-oss-20b; its modeling code for alpha and beta",
    ),
    Model(
        name="gpt-oss-120b",
        hidden=2880,
        intermediate=2880,
        small=(192, 192),
        experts=128,
        top_k=4,
        ep_sizes=(4, 8, 16),
        activation=SwigluOai(alpha=1.702, beta=1.0, limit=7.0),
        biases="per_expert",
        source="config.json of openai/gpt-oss-120b; its modeling code for alpha and beta",
    ),
    Model(
        name="qwen3-30b-a3b",
        hidden=2048,
        intermediate=768,
        small=(256, 96),
        experts=128,
        top_k=8,
        ep_sizes=(1, 2, 4, 8),
        activation=Swiglu(),
        source="config.json of Qwen/Qwen3-30B-A3B",
    ),
    Model(
        name="qwen3-235b-a22b",
        hidden=4096,
        intermediate=1536,
        small=(256, 96),
        experts=128,
        top_k=8,
        ep_sizes=(4, 8, 16),
        activation=Swiglu(),
        source="config.json of Qwen/Qwen3-235B-A22B",
    ),
    Model(
        name="deepseek-v4-flash",
        hidden=4096,
        intermediate=2048,
        small=(128, 64),
        experts=256,
        top_k=6,
        ep_sizes=(8, 16, 32),
        activation=SwigluOai(alpha=1.0, beta=0.0, limit=10.0),  # SwiGLU clamped at swiglu_limit
        routed_scaling_factor=1.5,
        source="config.json of deepseek-ai/DeepSeek-V4-Flash",
    ),
    Model(
        name="deepseek-v4-pro",
        hidden=7168,
        intermediate=3072,
        small=(224, 96),
        experts=384,
        top_k=6,
        ep_sizes=(32,),
        activation=SwigluOai(alpha=1.0, beta=0.0, limit=10.0),
        routed_scaling_factor=2.5,
        source="config.json of deepseek-ai/DeepSeek-V4-Pro",
    ),
    Model(
        name="kimi-k3",
        hidden=3584,  # of the latent that the experts work in
        intermediate=3072,
        small=(224, 192),
        experts=896,
        top_k=16,
        ep_sizes=(32,),
        activation=Situ(beta=4.0, linear_beta=25.0),
        source="config.json of moonshotai/Kimi-K3 (hidden: routed_expert_hidden_size); served on 32 ranks",
    ),
    Model(
        name="flashinfer-5438",
        hidden=4096,
        intermediate=256,
        small=(512, 32),
        experts=256,
        top_k=6,
        ep_sizes=(1,),
        activation=Swiglu(),
        source="flashinfer-ai/flashinfer#5438: scales of the next expert, seen with many experts and two K blocks",
    ),
)

MODELS: dict[str, Model] = {model.name: model for model in _ALL}
"""Every model by name, the lightest rank first."""
