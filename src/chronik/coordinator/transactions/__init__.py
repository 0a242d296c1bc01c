"""Transactional ids, and the markers that end their transactions."""
