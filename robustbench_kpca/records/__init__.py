"""What was found: per-sample outcomes, estimates, audits and the record that holds them. No torch."""
