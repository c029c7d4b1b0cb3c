"""This process: how it was started, how it fails, and how it hears that another one did."""
