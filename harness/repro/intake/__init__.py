"""Reads what a customer sends and drafts a scenario: facts with their sources, and questions.

Plain rules over lines of text. Each fact carries the file and line it stands in; what is in no line
is asked for and never filled in.
"""
