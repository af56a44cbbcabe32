"""The one loop that runs every attack."""
