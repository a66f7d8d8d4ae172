"""The parts of the command ``wcodec``."""
