"""Environments of conversations with language models: interpreters, visual tools, retrieval, databases, games, models.

``ENVIRONMENTS`` of ``mmgrpo/config/registry.py`` lists their names. Each module has one environment; a module with an
optional dependency imports it on use.
"""
