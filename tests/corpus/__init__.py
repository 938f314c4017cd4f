"""Ordinary training scripts, killed again and again, compared with a run that nobody disturbed."""
