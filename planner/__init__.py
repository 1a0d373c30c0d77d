"""Capacity and cost planner for serving LLMs."""

__version__ = "0.1.0"
