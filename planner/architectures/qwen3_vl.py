"""Qwen3-VL, dense and mixture of experts (vLLM, model_executor/models/qwen3_vl.py, qwen3_vl_moe.py)."""

from dataclasses import replace

from planner.architectures import _common as common
from planner.architectures import _vision as vision
from planner.architectures import qwen3, qwen3_moe
from planner.blocks import Stack
from planner.vendor_config import VendorConfig

MODEL_TYPES = ("qwen3_vl", "qwen3_vl_moe")
SECTIONS = ("text_config", "vision_config")


def blocks(config: VendorConfig) -> Stack:
    """Qwen3 (or its experts) beside a vision tower whose deepstack mergers feed the first layers."""
    text = common.text_section(config)
    stack = qwen3_moe.blocks(text) if config.fields.get("model_type") == "qwen3_vl_moe" else qwen3.blocks(text)
    return replace(stack, towers=(vision.qwen3_vl(config.section("vision_config")),), notes=(vision.NOTE,))
