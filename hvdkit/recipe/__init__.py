"""What a user declares, checked and planned; pure, without NumPy at import."""
