"""Recipes whose rewards speak of parts of a text alone: ``tests/configs/test_message_papers.py`` pays them."""

ELSEWHERE = {"spoc"}
