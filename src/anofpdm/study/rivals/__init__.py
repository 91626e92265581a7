"""The methods that the paper compares with, each as published."""
