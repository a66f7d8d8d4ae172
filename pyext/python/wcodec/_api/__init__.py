"""The functions of the package that take models, folders or files: they use everything below them, and nothing but
integrations and the command uses them."""
