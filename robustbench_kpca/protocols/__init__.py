"""Protocols: what is measured, the allowed perturbations, and where the TOML files are. Does not import torch."""
