"""The same attack by another library, compared sample by sample."""
