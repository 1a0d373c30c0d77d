"""Qwen2-VL (vLLM, model_executor/models/qwen2_vl.py): Qwen2 beside a vision tower."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import qwen2
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen2_vl",)
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """The text config lies flat in older files and in a section of its own in newer ones."""
    stack = qwen2.blocks(common.text_section(config))
    return replace(stack, towers=(vision.qwen2_vl(config.section("vision_config")),), notes=(vision.NOTE,))
