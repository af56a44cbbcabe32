"""The kernel-PCA claims, measured on models."""
