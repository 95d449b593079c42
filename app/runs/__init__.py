"""Runs as processes and folders."""
