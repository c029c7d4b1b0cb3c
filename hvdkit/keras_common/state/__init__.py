"""What hvdkit.tf and hvdkit.keras share."""
