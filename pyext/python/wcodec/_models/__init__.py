"""Whole models with compressed layers: replacing layers, saving and loading."""
