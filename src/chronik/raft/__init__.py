"""Consensus without input or output. Imports nothing of ours."""
