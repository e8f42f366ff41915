"""Training: corruption, losses, the loop, recipes."""
