"""Packs: every table and figure of one paper as a list of trainings, evaluations and diagnoses, run by one command."""
