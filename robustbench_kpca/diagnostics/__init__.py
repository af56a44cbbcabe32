"""Measure the kernel-PCA claims about attention, each compared with its null model."""
