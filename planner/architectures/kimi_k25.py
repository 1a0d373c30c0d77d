"""Kimi-K2.5 and K2.6: DeepSeek-V3's text model behind MoonViT (vLLM, model_executor/models/kimi_k25.py)."""

from dataclasses import replace

from planner.architectures import _vision as vision
from planner.architectures import deepseek_v2
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("kimi_k25",)
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """The text model with the vision tower and its projector beside it, which no quantised checkpoint has narrowed."""
    text = config.section("text_config")
    text.text("model_type", default="deepseek_v3", accepted=("deepseek_v3", "kimi_k2"))
    stack = deepseek_v2.blocks(text)
    tower = vision.moonvit(config.section("vision_config"), stack.embedding.hidden)
    weights = tuple((count, replace(tensor, quantisable=False)) for count, tensor in tower.weights)
    return replace(stack, towers=(replace(tower, weights=weights),), notes=(*stack.notes, vision.NOTE))
