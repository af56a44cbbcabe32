"""What is measured, as data: protocols, the perturbation sets they allow and where their files lie. No torch."""
