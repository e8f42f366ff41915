"""Diffusion models, AR models, and loading them."""
