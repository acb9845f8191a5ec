"""ullage: what fits before a launch, why it crashed, which change is worth trying next."""

__version__ = "0.1.0"
