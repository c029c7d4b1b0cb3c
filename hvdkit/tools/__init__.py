"""What people run by hand: the command line and what stands behind it."""
