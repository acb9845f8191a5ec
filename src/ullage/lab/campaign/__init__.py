"""A controlled campaign: a baseline, approaches that each change one thing, verdicts with their uncertainty."""
