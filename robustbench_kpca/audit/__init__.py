"""The audit: check on a model whether attacks are effective, so that its robust accuracy can be trusted."""
