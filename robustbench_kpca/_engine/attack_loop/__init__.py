"""Run attacks: the loop over samples, the counting of passes and the definition of success."""

VERSION = 1
"""Raised when outcomes of attacks can change with the loop, the engine below it, or what attacks share."""
