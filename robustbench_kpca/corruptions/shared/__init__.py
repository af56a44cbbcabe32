"""What others use of corruptions."""
