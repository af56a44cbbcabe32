"""Pictures of any size are shown to a model through windows of one size."""
