"""Recipes whose rewards score parts of a text alone: ``tests/configs/test_message_papers.py`` tests them."""

ELSEWHERE = {"spoc"}
