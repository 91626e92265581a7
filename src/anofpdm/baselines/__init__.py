"""The methods that the paper compares with, each as its own paper has it."""
