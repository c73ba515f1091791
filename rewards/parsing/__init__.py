"""Answers read out of model text, and right answers out of data rows."""
