"""Hooks of other packages, by which these load, run and fine-tune compressed models."""
