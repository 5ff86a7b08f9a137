"""What attacks the product for minutes or hours, run in this repository only."""
