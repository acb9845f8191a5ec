"""The lab: launches with foresight, keeps what happened, and runs controlled experiments."""
