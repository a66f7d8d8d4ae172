"""Every architecture of transformers, small and random, through all that wcodec does with models: see ``--help``."""
