"""Step 5 in torch: gradients, reduced while backward runs."""
