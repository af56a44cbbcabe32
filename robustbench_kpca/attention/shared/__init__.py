"""Code shared by attention variants: the heads, and rotary positions."""
