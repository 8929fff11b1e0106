"""What a run can do, one job a file."""
