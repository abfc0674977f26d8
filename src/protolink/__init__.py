"""Run a team of LLM agents inside a Python application."""
