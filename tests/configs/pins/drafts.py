"""Rows that begin as something that is given, or that are drawn beside others."""

from __future__ import annotations

ELSEWHERE = {"seele", "spec-rl"}
