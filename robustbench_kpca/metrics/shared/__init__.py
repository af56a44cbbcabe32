"""What several metrics and pages use."""
