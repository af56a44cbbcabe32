"""Whether a robust accuracy can be believed, asked of the model itself."""
