"""What several attacks use: balls, losses and random draws."""
