"""Training of models from recipes, on clean or adversarial images."""
