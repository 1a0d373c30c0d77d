"""Measuring a GPU and fitting kernel constants: points -> forms -> constants."""
