"""Report of a segmented scan: findings, an overview picture, an HTML page."""
