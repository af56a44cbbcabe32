"""The compute half: one loop runs models, one record comes out."""
