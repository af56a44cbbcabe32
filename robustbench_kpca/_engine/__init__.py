"""The one place that calls a model, and the one loop that attacks it. Private to the package."""
