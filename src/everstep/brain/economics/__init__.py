"""What-if arithmetic and the bill."""
