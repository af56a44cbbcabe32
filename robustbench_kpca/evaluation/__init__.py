"""Evaluate models: run them under protocols and write one record per model and protocol."""
