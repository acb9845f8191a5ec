"""The browser page: ``ullage ui``. It asks the same use-cases as the command line and holds no arithmetic."""
