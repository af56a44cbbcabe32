"""Verify numbers: make records again, and compare attacks and corruptions with those of other libraries."""
