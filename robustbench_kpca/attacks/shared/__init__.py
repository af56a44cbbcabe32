"""Code shared by attacks: geometry of the threat models, losses and random draws."""
