"""What is said of a segmented scan: findings, tables, a picture."""
