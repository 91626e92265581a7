"""What is said of a segmented scan: findings, a picture, a page."""
